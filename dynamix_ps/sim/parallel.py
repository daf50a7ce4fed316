"""Independent tasks in several processes, each with one thread for its matrix products."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeVar

from dynamix_ps.one_thread import ONE_THREAD

Job = TypeVar("Job")
Result = TypeVar("Result")


def parallel(
    task: Callable[[Job], Result], jobs: Sequence[Job], processes: int | None = None
) -> Iterator[tuple[int, Result]]:
    """Yield (index of the job, its result) in the order in which jobs finish.

    Args:
        task: a function at the top level of a module; it and the jobs are pickled.
        processes: how many; None: one per core that this process may use. With 1, all jobs run here, in order.

    Raises:
        Whatever a task raises, without waiting for the other tasks.
    """
    processes = min(processes or len(os.sched_getaffinity(0)), len(jobs))
    if processes <= 1:
        yield from ((index, task(job)) for index, job in enumerate(jobs))
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        with _one_thread_each():  # submitting a job starts the processes
            futures = {pool.submit(task, job): index for index, job in enumerate(jobs)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started inside this context use one thread each: numpy reads these variables when it is loaded."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
