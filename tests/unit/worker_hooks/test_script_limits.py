"""What the limits of `run.batches()` mean, call after call."""

from __future__ import annotations

import pytest

from dynamix_ps.errors import TrainingError
from worker_hooks.script_limits import ScriptLimits


def epochs_asked(*calls: int) -> list[int | None]:
    limits, found = ScriptLimits(), []
    for call in calls:
        last, _ = limits.limits(call, None)
        limits.complete(last, None, trained=0)
        found.append(last)
    return found


def test_both_loops_over_epochs_do_what_they_say() -> None:
    assert epochs_asked(1, 1, 1) == [1, 2, 3]  # for epoch in range(3): run.batches(epochs=1)
    assert epochs_asked(1, 2, 3) == [1, 2, 3]  # for epoch in range(3): run.batches(epochs=epoch + 1)
    assert epochs_asked(2, 2) == [2, 4]
    assert epochs_asked(3) == [3]


def test_iterations_likewise() -> None:
    limits = ScriptLimits()
    assert limits.limits(None, 100) == (None, 100)
    limits.complete(None, 100, trained=100)
    assert limits.limits(None, 100) == (None, 200)


def test_a_loop_that_was_left_counts_as_far_as_it_came() -> None:
    limits = ScriptLimits()
    limits.limits(20, None)
    limits.left(epoch=1, iteration=37)
    assert limits.limits(3, None) == (3, None)


def test_inside_run_epochs_every_call_is_one_pass() -> None:
    limits = ScriptLimits()
    limits.pass_number = 2
    assert limits.limits(None, None) == (3, None)
    assert limits.limits(1, None) == (3, None)
    limits.pass_number = None
    with pytest.raises(TrainingError, match=r"needs epochs=\.\.\. or iterations"):
        limits.limits(None, None)
