"""Counts Ctrl-C, SIGTERM and SIGHUP to the launcher: the first stops the run in order, the second kills."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """A context manager; only for the main thread. A signal that the launcher ignores already (nohup) stays ignored."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""  # name of the first signal
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in _WATCHED:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._count)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.first = self.first or signal.Signals(number).name
