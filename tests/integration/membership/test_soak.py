"""Random events happen to the roles of a job and to their links, memory and disk: it ends as if there had been none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.studies.membership.soak import run_soak
from benchmarks.studies.membership.soak_plan import PLANES, SHORT
from benchmarks.testbed.bed import permitted

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.long,
    pytest.mark.skipif(permitted() is not None, reason=f"no hosts: {permitted()}"),
]


@pytest.mark.parametrize("plane", PLANES)
def test_a_job_with_random_events_ends_right(plane: str) -> None:
    outcome = run_soak(replace(SHORT, plane=plane))
    assert outcome.wrong == []
    assert len(outcome.events) == SHORT.events and all(event.effect_s is not None for event in outcome.events)
