"""Who takes part when a training begins: one framework, the workers that the job began with, one cluster file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dynamix_ps.comm.local import LocalComm
from dynamix_ps.errors import TrainingError
from worker_hooks.start import ATTACH, BEFORE_ALL, FAILED_BEFORE_ALL, check_workers, compare_settings


class Together(LocalComm):
    """Worker 0 of a job with four slots, which began with those in `first`; `others` are there too, by framework."""

    def __init__(self, first: int, call: int = ATTACH, **others: tuple[int, ...]) -> None:
        """`call`: in which the others are."""
        super().__init__()
        self.rank, self.size = 0, 4
        self._first, self._call, self._others = first, call, others

    @property
    def first_size(self) -> int:
        return self._first

    def declare(self, name: str, rounded: int = 0, priority: int = 0) -> None: ...

    def total(self, name: str, values: NDArray[Any], on_slow: Any = None) -> NDArray[Any]:
        rows = values.reshape(2, 4)
        for row, framework in zip(rows, ("torch", "mxnet"), strict=True):
            row[list(self._others.get(framework, ()))] += self._call
        return np.asarray(rows.ravel())


def test_all_workers_that_the_job_begins_with_are_there() -> None:
    check_workers(Together(4, torch=(1, 2, 3)), "torch")
    check_workers(Together(2, torch=(1,)), "torch")
    told = check_workers(Together(4, BEFORE_ALL, torch=(1, 2, 3)), "torch", FAILED_BEFORE_ALL)
    assert told == {BEFORE_ALL, FAILED_BEFORE_ALL}


@pytest.mark.parametrize(
    ("comm", "said"),
    [
        (Together(2, torch=(1, 2, 3)), r"the 2 workers that the job began with, and since then workers 2, 3 came;"),
        (Together(4, torch=(1, 3)), r"the 4 workers that the job began with, and since then worker 2 went;"),
        (Together(2, torch=(3,)), r"and since then worker 3 came and worker 1 went; attach all"),
        (Together(3, torch=(1,), mxnet=(2,)), r"one framework, found 2 with torch, 1 with mxnet"),
        (Together(3, BEFORE_ALL, torch=(1, 2)), r"workers 1, 2 in before_all\(\), worker 0 in attach\(\); call before"),
    ],
)
def test_what_is_different_is_named(comm: Together, said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        check_workers(comm, "torch")


def test_all_keys_in_which_cluster_files_differ_are_named() -> None:
    ours = {"mode": "adapt", "window": "20", "lr": "follow"}
    compare_settings({0: ours, 1: dict(ours)})
    theirs = ours | {"window": "10", "policy.stigmergy.alarm": "1.0"}
    said = (
        "in window: 20 on workers 0, 3, 10 on worker 2; policy.stigmergy.alarm: not used on workers 0, 3, 1.0 on "
        "worker 2; start all workers with the same file"
    )
    with pytest.raises(TrainingError, match=said):
        compare_settings({0: ours, 2: theirs, 3: ours})
