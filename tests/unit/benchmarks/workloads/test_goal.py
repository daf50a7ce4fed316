"""When a training run of the benchmarks ends."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.workloads.goal import Goal

PER_EPOCH = 4  # batches


class Run:
    """Counts batches from 1 on; as a real one, it goes on where it stopped."""

    def __init__(self) -> None:
        self.done = 0
        self.asked: list[int | None] = []

    def batches(self, epochs: int | None = None) -> Iterator[int]:
        self.asked.append(epochs)
        while epochs is not None and self.done < PER_EPOCH * epochs:
            yield self.done + 1
            self.done += 1


def trained(goal: Goal, accuracies: list[float]) -> tuple[int, list[int | None]]:
    """Batches handed out, with an evaluation after each, and the ends that were named."""
    run, newest = Run(), 0
    for newest in goal.batches(run):
        goal.see(accuracies[newest - 1])
    return newest, run.asked


def test_the_same_epochs_for_all_that_arrive_in_them() -> None:
    assert trained(Goal(2, 4, 0.5), [0.6] * 20) == (8, [2])
    assert trained(Goal(2, 4, 0.5), [0.6] * 4 + [0.1] * 20) == (8, [2]), "having arrived is enough"


def test_who_has_not_arrived_goes_on_until_then() -> None:
    assert trained(Goal(2, 4, 0.5), [0.1] * 10 + [0.6] * 10) == (13, [2, 4])
    assert trained(Goal(2, 4, 0.5), [0.1] * 20) == (16, [2, 4])
    assert trained(Goal(2, 2, 0.5), [0.1] * 20) == (8, [2]), "nothing more is asked for than there is"


def test_one_lucky_evaluation_is_no_arrival() -> None:
    assert trained(Goal(1, 4, 0.5), [0.4, 0.4, 0.4, 0.4, 0.65, 0.4, 0.4, 0.4, 0.5, 0.55, 0.55, 0.1]) == (11, [1, 4])
