"""Shows the lines of all roles on the terminal, each behind the role's name; of a flood, the first and the last ones.

Showing a line takes far longer than writing it to a log, and roles wait with their output while the launcher is behind.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from dynamix_ps.errors import DEGRADED
from dynamix_ps.terminal import print_line, printable

Show = Callable[[str, Sequence[str], bool], None]  # (role, lines, whether all of them must be shown)

BURST_LINES = 2000  # of a role that are shown at once
LINES_PER_S = 100.0  # of a role in the long run
LAST_SHOWN = 10  # behind those that are left out
TOLD_EVERY_S = 1.0
_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow")


class _Flow:
    """The lines of one role: which are shown at once, and how many wait."""

    def __init__(self, now_s: float) -> None:
        self._room, self._seen_s = float(BURST_LINES), now_s
        self._waiting = 0
        self._since_s = now_s  # of the first one that waits
        self._last: deque[str] = deque(maxlen=LAST_SHOWN)

    def pass_on(self, lines: Sequence[str], now_s: float) -> Sequence[str]:
        """The lines to show at once. The others wait, and so do all lines after them."""
        self._room = min(BURST_LINES, self._room + LINES_PER_S * (now_s - self._seen_s))
        self._seen_s = now_s
        count = 0 if self._waiting else min(len(lines), int(self._room))
        self._room -= count
        if count < len(lines):
            self._since_s = self._since_s if self._waiting else now_s
            self._waiting += len(lines) - count
            self._last.extend(lines[max(count, len(lines) - LAST_SHOWN) :])
        return lines[:count]

    def due(self, now_s: float) -> bool:
        """Whether lines have waited long enough."""
        return self._waiting > 0 and now_s - self._since_s >= TOLD_EVERY_S

    def end_waiting(self) -> tuple[int, Sequence[str]]:
        """(number of waiting lines that are left out, the last ones, which are shown)"""
        left_out, last = self._waiting - len(self._last), tuple(self._last)
        self._waiting = 0
        self._last.clear()
        return left_out, last


class PrefixedOutput:
    """Shows at most BURST_LINES lines of a role at once and LINES_PER_S in the long run. Once per second it shows
    how many lines it has left out, and the last of them. The role's log has all lines.

    Leaves out lines about a degradation: the live view shows each once for all roles, and the role's log has it.

    Args:
        console: of the launcher.
        names: of the roles.
        clock: seconds.
    """

    def __init__(self, console: Console, names: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._width = max(map(len, names), default=0)
        self._colours = {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(names)}
        self._flows: dict[str, _Flow] = {}

    def __call__(self, name: str, lines: Sequence[str], whole: bool) -> None:
        """Show lines of a role; `whole`: all of them, because no file has them."""
        if whole:
            self._tell(name)
            self._print(name, lines)
            return
        now_s = self._clock()
        flow = self._flows.setdefault(name, _Flow(now_s))
        self._print(name, flow.pass_on(lines, now_s))

    def tick(self) -> None:
        """Show how many lines were left out, where it is time. Call this a few times per second."""
        now_s = self._clock()
        for name, flow in self._flows.items():
            if flow.due(now_s):
                self._tell(name)

    def finish(self) -> None:
        """Show everything that waits. No line follows."""
        for name in self._flows:
            self._tell(name)

    def _tell(self, name: str) -> None:
        left_out, last = self._flows[name].end_waiting() if name in self._flows else (0, ())
        if left_out:
            self._print(name, [f"... {left_out:,} more lines in {name}.log"])
        self._print(name, last)

    def _print(self, name: str, lines: Sequence[str]) -> None:
        """Print all lines in one call: the table below is redrawn with each call."""
        prefix = Text(f"{name:<{self._width}} | ", style=self._colours.get(name, ""))
        if texts := [prefix + printable(line) for line in lines if DEGRADED not in line]:
            print_line(self._console, Text("\n").join(texts))
