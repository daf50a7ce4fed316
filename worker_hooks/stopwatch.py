"""Where the time of one iteration goes, as the training thread sees it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import NamedTuple


class Times(NamedTuple):
    """Seconds of one iteration. Pauses are in none of them; duration = input + compute + blocked."""

    input_s: float
    compute_s: float
    blocked_s: float
    duration_s: float


class Stopwatch:
    """begin -> batch_ready -> blocked (in the gradient sum) -> end, with pauses anywhere in between."""

    def __init__(self) -> None:
        self.blocked_s = 0.0  # of the iteration at hand, or the last complete one
        self.pauses_s = 0.0  # all of them so far
        self._all_paused_s = self._paused_cpu_s = 0.0  # since the last cpu_ratio()
        self._asked_s, self._asked_cpu_s = time.perf_counter(), time.process_time()
        self.begin()

    def begin(self) -> None:
        self._begin_at(time.perf_counter())

    def _begin_at(self, now_s: float) -> None:
        self._began_s = self._ready_s = now_s
        self._paused_s = 0.0

    def batch_ready(self) -> None:
        self._ready_s = time.perf_counter()

    def compute_so_far_s(self) -> float:
        """Seconds of computing since the batch was ready."""
        return time.perf_counter() - self._ready_s - self._paused_s

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Time in here belongs to no iteration."""
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            paused_s = time.perf_counter() - began_s
            self._paused_s += paused_s
            self._all_paused_s += paused_s
            self.pauses_s += paused_s
            self._paused_cpu_s += time.process_time() - began_cpu_s

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        """Time in here is spent waiting for the sum."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self.blocked_s = time.perf_counter() - began_s

    def end(self) -> Times:
        """Close the iteration and begin the next one at the same instant."""
        ended_s = time.perf_counter()
        input_s = self._ready_s - self._began_s
        duration_s = ended_s - self._began_s - self._paused_s
        times = Times(input_s, duration_s - input_s - self.blocked_s, self.blocked_s, duration_s)
        self._begin_at(ended_s)
        return times

    def cpu_ratio(self) -> float:
        """CPU seconds of this process per second since the last call, pauses left out.

        Not per iteration: adding up the clocks of all threads is slow.
        """
        now_s, now_cpu_s = time.perf_counter(), time.process_time()
        cpu_s = now_cpu_s - self._asked_cpu_s - self._paused_cpu_s
        wall_s = now_s - self._asked_s - self._all_paused_s
        self._asked_s, self._asked_cpu_s = now_s, now_cpu_s
        self._all_paused_s = self._paused_cpu_s = 0.0
        return cpu_s / wall_s if wall_s > 0 else math.nan
