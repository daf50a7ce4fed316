"""20 random events happen to the workers of a job over BytePS, which ends as if there had been none."""

from __future__ import annotations

import pytest

from benchmarks.studies.soak import run_soak
from benchmarks.studies.soak_job import SHORT

pytestmark = pytest.mark.timeout(400)


def test_a_job_with_random_events_ends_right() -> None:
    outcome = run_soak(SHORT)
    assert outcome.wrong == []
    assert len(outcome.events) == SHORT.events and all(event.effect_s is not None for event in outcome.events)
