"""Processes, some at a time."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Collection, Generator, Iterable
from typing import TypeVar

_LOOK_EVERY_S = 0.2
_TERM_S = 5.0

Job = TypeVar("Job")


def some_at_a_time(
    waiting: Iterable[Job],
    jobs: int,
    start: Callable[[Job], subprocess.Popen[bytes]],
    on_wait: Callable[[Collection[Job]], None],
) -> Generator[tuple[Job, int], None, None]:
    """Start a process for each job, `jobs` of them at a time; yield a job and its exit code when it has ended.

    The next job is taken when its process can begin, so `waiting` may end early. Closing the iterator stops the
    processes that run: use `contextlib.closing`.

    Args:
        on_wait: called several times a second with the jobs that run.
    """
    left = iter(waiting)
    running: dict[Job, subprocess.Popen[bytes]] = {}
    try:
        while True:
            while len(running) < jobs and (job := next(left, None)) is not None:
                running[job] = start(job)
            if not running:
                return
            time.sleep(_LOOK_EVERY_S)
            for job in [job for job, process in running.items() if process.poll() is not None]:
                yield job, running.pop(job).returncode
            on_wait(tuple(running))
    finally:
        _stop(running.values())


def _stop(processes: Collection[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(_TERM_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
