"""Whether a batch has parts, and whether its backward pass may end early."""

from __future__ import annotations

import pytest

from worker_hooks.memory.batch_parts import NUMBER, BatchParts


class Worker:
    """Late or not, with a deadline that is over or not."""

    def __init__(self) -> None:
        self.is_late = self.is_over = False
        self.told: list[str] = []
        self.parts = BatchParts(lambda: self.is_late, lambda: self.is_over, self.told.append)


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_a_batch_has_parts_where_the_worker_has_been_late(worker: Worker) -> None:
    worker.parts.begin()
    assert worker.parts.number() == 1
    worker.is_late = True
    assert worker.parts.number() == 1, "as when the batch began"
    worker.parts.begin()
    assert worker.parts.number() == NUMBER


def test_rows_that_are_left_are_those_of_the_batch_in_flight(worker: Worker) -> None:
    worker.parts.begin()
    worker.parts.left(3)
    assert worker.parts.rows_left == 3
    worker.parts.begin()
    assert worker.parts.rows_left == 0


def test_a_script_that_is_refused_has_whole_batches(worker: Worker) -> None:
    worker.is_late = worker.is_over = True
    worker.parts.begin()
    assert worker.parts.is_over()
    for reason in ("one", "other", "one"):
        worker.parts.refuse(reason)
    assert not worker.parts.is_over(), "the batch in flight runs to its end"
    worker.parts.begin()
    assert worker.parts.number() == 1
    assert worker.told == ["one", "other"]
