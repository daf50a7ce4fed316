"""Counts Ctrl-C, SIGTERM and SIGHUP to the launcher: the first stops the run in order, the second kills.

A notice to a host stops the run in order too. A batch system sends a notice to all hosts and to the launcher at once,
so these count as one.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """A context manager; only for the main thread. A signal that the launcher ignores already (nohup) stays ignored."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""  # name of the first signal, and where it came if not here
        self._same: bool = False  # whether the next signal is the one of which a host has told
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in _WATCHED:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._count)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def notice(self, name: str, host: str) -> None:
        """A host got a signal to end."""
        if not self.count:
            self.count, self.first, self._same = 1, f"{name} on host {host}", True

    def _count(self, number: int, frame: FrameType | None) -> None:
        self.count += not self._same
        self._same = False
        self.first = self.first or signal.Signals(number).name
