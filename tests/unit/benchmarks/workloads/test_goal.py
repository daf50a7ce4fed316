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


def trained(goal: Goal, values: list[float], metric: str = "accuracy") -> tuple[int, list[int | None]]:
    """Batches handed out, with an evaluation after each, and the ends that were named."""
    run, newest = Run(), 0
    for newest in goal.batches(run):
        goal.see({metric: values[newest - 1], "another": 0.0})
    return newest, run.asked


def accuracy(epochs: int, most_epochs: int, target: float | None = 0.5) -> Goal:
    return Goal(epochs, most_epochs, "accuracy", target)


def test_the_same_epochs_for_all_that_arrive_in_them() -> None:
    assert trained(accuracy(2, 4), [0.6] * 20) == (8, [2])
    assert trained(accuracy(2, 4), [0.6] * 4 + [0.1] * 20) == (8, [2]), "having arrived is enough"


def test_who_has_not_arrived_goes_on_until_then() -> None:
    assert trained(accuracy(2, 4), [0.1] * 10 + [0.6] * 10) == (13, [2, 4])
    assert trained(accuracy(2, 4), [0.1] * 20) == (16, [2, 4])
    assert trained(accuracy(2, 2), [0.1] * 20) == (8, [2]), "nothing more is asked for than there is"


def test_one_lucky_evaluation_is_no_arrival() -> None:
    assert trained(accuracy(1, 4), [0.4, 0.4, 0.4, 0.4, 0.65, 0.4, 0.4, 0.4, 0.5, 0.55, 0.55, 0.1]) == (11, [1, 4])


def test_a_loss_arrives_from_above() -> None:
    falling = [3.0, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4, 2.3]
    assert trained(Goal(1, 2, "bpb", 2.5), falling, "bpb") == (7, [1, 2]), "2.5 is the mean of 2.6, 2.5 and 2.4"
    assert trained(Goal(1, 2, "loss", 3.0), falling, "loss") == (4, [1])


def test_without_a_target_nothing_is_good_enough() -> None:
    assert trained(accuracy(1, 2, None), [1.0] * 8) == (8, [1, 2])
