"""When a training of the benchmarks ends."""

from __future__ import annotations

from benchmarks.workloads.goal import Goal


def ends(goal: Goal, accuracies: list[float], per_epoch: int = 4) -> int | None:
    """The evaluation after which it may end, from 1; `per_epoch` of them are in an epoch."""
    for count, accuracy in enumerate(accuracies, start=1):
        if goal.reached(count // per_epoch, accuracy):
            return count
    return None


def test_the_same_epochs_for_all_that_arrive_in_them() -> None:
    assert ends(Goal(2, 4, 0.5), [0.6] * 20) == 8
    assert ends(Goal(2, 4, 0.5), [0.6] * 4 + [0.1] * 20) == 8, "having arrived is enough"


def test_who_has_not_arrived_goes_on_until_then() -> None:
    assert ends(Goal(2, 4, 0.5), [0.1] * 10 + [0.6] * 10) == 13
    assert ends(Goal(2, 4, 0.5), [0.1] * 20) is None


def test_one_lucky_evaluation_is_no_arrival() -> None:
    assert ends(Goal(1, 4, 0.5), [0.4, 0.4, 0.4, 0.4, 0.65, 0.4, 0.4, 0.4, 0.5, 0.55, 0.55]) == 11
