"""Shows a build while it runs: a line per phase with its time; on a terminal also the present file."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status

_SOURCE = re.compile(r" -c (?:\S*/)?((?:[\w-]+/)?[\w-]+\.(?:cc|cpp|c))\b")


class Progress:
    """Phases of a build on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._phase = ""
        self._files = 0
        self._began_s = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Show `name` while the phase runs, and its duration at the end."""
        self._phase, self._files, self._began_s = name, 0, time.monotonic()
        if self._console.is_terminal:
            with self._console.status(name) as self._status:
                yield
            self._status = None
            self.note(f"[green]✓[/] {name} [dim]{self._passed_s():.1f} s[/]")
            return
        self._console.print(f"{name} ... ", end="", highlight=False, soft_wrap=True)
        try:
            yield
        except BaseException:
            self.note("not done")
            raise
        self.note(f"{self._passed_s():.1f} s")

    def _passed_s(self) -> float:
        return time.monotonic() - self._began_s

    def line(self, line: str) -> None:
        """Take a line of the compiler's output, and show which file it compiles."""
        found = _SOURCE.search(line)
        if found is None:
            return
        self._files += 1
        if self._status is not None:
            self._status.update(f"{self._phase} [dim]{self._passed_s():.0f} s, {self._files} files, {found[1]}[/]")

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)
