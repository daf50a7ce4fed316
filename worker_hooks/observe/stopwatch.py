"""Measures how the training thread spends the time of an iteration, garbage collections too."""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol


class Times(NamedTuple):
    """Seconds of one iteration, without pauses; duration = input + compute + blocked + outside."""

    input_s: float
    compute_s: float
    blocked_s: float
    duration_s: float
    cpu_s: float  # of all threads of this process
    gc_s: float  # garbage collections, which lie in the times above
    outside_s: float = 0.0  # between the last step and the next batch, and between two loops over batches
    outside_cpu_s: float = 0.0  # of cpu_s, what was used meanwhile


class NewestSum(NamedTuple):
    """What a watch may want to know of the newest sum."""

    spent: tuple[int, ...]  # by every worker, in the unit of the plan
    epochs: float  # passes over the data, this iteration included
    bytes_pushed: int  # by each worker


class Watch(Protocol):
    """Times of the workers of this process."""

    waited_s: tuple[float, ...]  # in the gradient sum of the iteration before, by worker
    lasted_s: float  # the iteration before
    pauses_s: float  # all pauses so far

    def now_s(self) -> float:
        """Seconds since some moment."""

    def begin(self) -> None:
        """An iteration begins."""

    def loop_begun(self) -> None:
        """A loop over batches begins; an earlier one may have ended some time ago."""

    def batch_ready(self) -> None: ...

    def stepped(self) -> None:
        """An optimizer has taken a step."""

    def compute_so_far_s(self) -> float:
        """Seconds of computing since the batch was ready."""

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Time in here belongs to no iteration."""

    def blocked(self) -> contextlib.AbstractContextManager[None]:
        """Time in here is spent waiting for the sum."""

    def end(self) -> tuple[Times, ...]:
        """Close the iteration, and begin the next one at the same instant. The times of every worker."""


class _Spent(NamedTuple):
    """Time of an iteration, and CPU time."""

    seconds: float
    cpu_s: float


_NO_TIME = _Spent(0.0, 0.0)


class GarbageClock:
    """Adds up the garbage collections of this process from now on. A collection stops all its threads."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began_s = 0.0
        gc.callbacks.append(self._see)

    def _see(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._began_s = time.perf_counter()
        else:
            self.seconds += time.perf_counter() - self._began_s


@functools.cache
def _clock() -> GarbageClock:
    return GarbageClock()


def garbage_s() -> float:
    """Seconds of garbage collection since the first call in this process."""
    return _clock().seconds


class _Blocked(contextlib.AbstractContextManager[None]):
    """Adds the time in it to what is blocked."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        self._began_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._watch.blocked_s += time.perf_counter() - self._began_s


class Stopwatch:
    """The watch of a process that is one worker.

    begin -> batch_ready -> blocked (in the gradient sum) -> stepped -> end, with pauses and more sums anywhere in
    between; loop_begun may come between begin and batch_ready.
    """

    def __init__(self, garbage_s: Callable[[], float] = garbage_s) -> None:
        """`garbage_s` returns the seconds of garbage collection so far."""
        self._garbage_s = garbage_s
        self.blocked_s = 0.0  # so far in the present iteration
        self.waited_s: tuple[float, ...] = (0.0,)
        self.lasted_s = self.pauses_s = 0.0
        self.begin()

    def now_s(self) -> float:
        return time.perf_counter()

    def begin(self) -> None:
        self._begin_at(time.perf_counter(), time.process_time(), self._garbage_s())

    def _begin_at(self, now_s: float, now_cpu_s: float, now_gc_s: float) -> None:
        self._began_s = self._ready_s = now_s
        self.waited_s, self.blocked_s = (self.blocked_s,), 0.0
        self._began_cpu_s = now_cpu_s
        self._began_gc_s = now_gc_s
        self._paused_s = self._paused_cpu_s = self._paused_gc_s = 0.0
        self._paused_before_ready_s = self._blocked_before_ready_s = 0.0  # of these, while there was no batch
        self._between_loops = self._stepped = _NO_TIME

    def loop_begun(self) -> None:
        self._between_loops = self._trained_so_far()

    def stepped(self) -> None:
        self._stepped = self._trained_so_far()

    def _trained_so_far(self) -> _Spent:
        """Time of this iteration, without what is blocked or paused."""
        now_s, now_cpu_s = time.perf_counter(), time.process_time()
        return _Spent(
            now_s - self._began_s - self._paused_s - self.blocked_s,
            now_cpu_s - self._began_cpu_s - self._paused_cpu_s,
        )

    def batch_ready(self) -> None:
        self._ready_s = time.perf_counter()
        self._paused_before_ready_s, self._blocked_before_ready_s = self._paused_s, self.blocked_s

    def compute_so_far_s(self) -> float:
        return time.perf_counter() - self._ready_s - (self._paused_s - self._paused_before_ready_s)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        began_s, began_cpu_s, began_gc_s = time.perf_counter(), time.process_time(), self._garbage_s()
        try:
            yield
        finally:
            paused_s = time.perf_counter() - began_s
            self._paused_s += paused_s
            self.pauses_s += paused_s
            self._paused_cpu_s += time.process_time() - began_cpu_s
            self._paused_gc_s += self._garbage_s() - began_gc_s

    def blocked(self) -> contextlib.AbstractContextManager[None]:
        return _Blocked(self)

    def end(self) -> tuple[Times, ...]:
        ended_s, ended_cpu_s, ended_gc_s = time.perf_counter(), time.process_time(), self._garbage_s()
        between, stepped = self._between_loops, self._stepped
        self.lasted_s = ended_s - self._began_s - self._paused_s
        own_s = self.lasted_s - self.blocked_s
        cpu_s = ended_cpu_s - self._began_cpu_s - self._paused_cpu_s
        after = _Spent(own_s - stepped.seconds, cpu_s - stepped.cpu_s) if stepped is not _NO_TIME else _NO_TIME
        outside_s, outside_cpu_s = between.seconds + after.seconds, between.cpu_s + after.cpu_s
        input_s = self._ready_s - self._began_s - self._paused_before_ready_s - self._blocked_before_ready_s
        input_s -= between.seconds
        gc_s = ended_gc_s - self._began_gc_s - self._paused_gc_s
        times = Times(
            input_s,
            own_s - input_s - outside_s,
            self.blocked_s,
            self.lasted_s,
            cpu_s,
            gc_s,
            outside_s,
            outside_cpu_s,
        )
        self._begin_at(ended_s, ended_cpu_s, ended_gc_s)
        return (times,)
