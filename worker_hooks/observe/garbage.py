"""How long this process has spent in Python's garbage collector."""

from __future__ import annotations

import functools
import gc
import time
from typing import Any


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
