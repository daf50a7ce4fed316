"""Shows a build while it runs: phases with their time and the present file; plain lines without a terminal."""

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

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Show `name` while the phase runs, and its duration at the end."""
        self._phase, self._files = name, 0
        start = time.monotonic()
        if self._console.is_terminal:
            with self._console.status(name) as self._status:
                yield
            self._status = None
        else:
            self._console.print(f"{name} ...", highlight=False, soft_wrap=True)
            yield
        took = f"[dim]{time.monotonic() - start:.1f} s[/]"
        self._console.print(f"[green]✓[/] {name} {took}", highlight=False, soft_wrap=True)

    def line(self, line: str) -> None:
        """Take a line of the compiler's output, and show which file it compiles."""
        found = _SOURCE.search(line)
        if found is None:
            return
        self._files += 1
        if self._status is not None:
            self._status.update(f"{self._phase} [dim]{self._files} files, {found[1]}[/]")

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)
