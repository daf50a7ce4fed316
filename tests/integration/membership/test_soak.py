"""Random events happen to the workers of a job, over BytePS or a ring, which ends as if there had been none."""

from __future__ import annotations

import pytest

from benchmarks.studies.membership.soak import run_soak
from benchmarks.studies.membership.soak_job import RING, SHORT, Plan

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]


@pytest.mark.parametrize("plan", [SHORT, RING], ids=["byteps", "gloo"])
def test_a_job_with_random_events_ends_right(plan: Plan) -> None:
    outcome = run_soak(plan)
    assert outcome.wrong == []
    assert len(outcome.events) == plan.events and all(event.effect_s is not None for event in outcome.events)
