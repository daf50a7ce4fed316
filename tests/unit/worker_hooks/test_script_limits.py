"""What the limits of `run.batches()` mean, call after call."""

from __future__ import annotations

import pytest

from dynamix_ps.errors import TrainingError
from worker_hooks.iteration.script_limits import ScriptLimits
from worker_hooks.sampling.sampler import Cursor

BEGIN = Cursor()


def epochs_asked(*calls: int) -> list[int | None]:
    limits, found = ScriptLimits(), []
    for call in calls:
        asked = limits.batches(call, None, BEGIN)
        limits.complete(asked, trained=0)
        found.append(asked.last_epoch)
    return found


def test_both_loops_over_epochs_do_what_they_say() -> None:
    assert epochs_asked(1, 1, 1) == [1, 2, 3]  # for epoch in range(3): run.batches(epochs=1)
    assert epochs_asked(1, 2, 3) == [1, 2, 3]  # for epoch in range(3): run.batches(epochs=epoch + 1)
    assert epochs_asked(2, 2) == [2, 4]
    assert epochs_asked(3) == [3]


def test_iterations_likewise() -> None:
    limits = ScriptLimits()
    asked = limits.batches(None, 100, BEGIN)
    assert asked == (0, None, 100)
    limits.complete(asked, trained=100)
    assert limits.batches(None, 100, BEGIN) == (0, None, 200)


def test_a_loop_that_was_left_counts_as_far_as_it_came() -> None:
    limits = ScriptLimits()
    limits.batches(20, None, BEGIN)
    limits.left(epoch=1, iteration=37)
    assert limits.batches(3, None, Cursor(1, 8)) == (1, 3, None)


def test_a_loop_of_one_pass_after_one_that_was_left_begins_a_new_pass() -> None:
    limits = ScriptLimits()
    limits.batches(1, None, BEGIN)
    limits.left(epoch=0, iteration=3)
    assert limits.batches(1, None, Cursor(0, 24)) == (1, 2, None)
    limits.left(epoch=1, iteration=3)
    assert limits.batches(1, None, Cursor(1, 0)) == (1, 2, None), "nothing of this pass was used"


def test_inside_run_epochs_every_call_is_one_pass() -> None:
    limits = ScriptLimits()
    limits.pass_number = 2
    assert limits.batches(None, None, Cursor(2)) == (2, 3, None)
    assert limits.batches(1, None, Cursor(1, 8)) == (2, 3, None)
    assert limits.batches(1, 7, Cursor(1, 8)) == (1, 3, 7)
    limits.pass_number = None
    with pytest.raises(TrainingError, match=r"needs epochs=\.\.\. or iterations"):
        limits.batches(None, None, BEGIN)


def test_calls_of_run_epochs_follow_one_another() -> None:
    limits = ScriptLimits()
    assert limits.passes(2, BEGIN) == (0, range(2))
    assert limits.passes(3, Cursor(2)) == (2, range(2, 5))
    assert limits.passes(1, Cursor(4, 8)) == (5, range(5, 6)), "the pass at hand was left"
    resumed = ScriptLimits(limits.epochs_begun)
    assert [resumed.passes(count, Cursor(5, 8)) for count in (2, 9, 4)] == [
        (0, range(5, 2)),
        (2, range(5, 5)),
        (5, range(5, 9)),
    ]
