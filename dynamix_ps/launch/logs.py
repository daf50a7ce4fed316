"""Output of the roles: one file per role, and the lines that are complete."""

from __future__ import annotations

import codecs
from collections import deque
from pathlib import Path
from typing import IO

MAX_LINE = 8192  # characters; longer output without a newline is cut into such pieces
LAST_LINES = 20


class LineSplitter:
    """Cuts a stream of bytes into lines, also where a read ends within a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def feed(self, data: bytes, final: bool = False) -> list[str]:
        """Lines that end in `data`; with `final`, also the last one, which has no newline."""
        *lines, self._rest = (self._rest + self._decoder.decode(data, final)).split("\n")
        while len(self._rest) > MAX_LINE:
            lines.append(self._rest[:MAX_LINE])
            self._rest = self._rest[MAX_LINE:]
        if final and self._rest:
            lines.append(self._rest)
            self._rest = ""
        return [_last_state(line) if "\r" in line else line for line in lines]


def _last_state(line: str) -> str:
    """What a terminal shows in the end of a line that a progress bar has rewritten with carriage returns."""
    return next((part for part in reversed(line.split("\r")) if part), "")


class RoleLog:
    """Writes the output of a role to its file unchanged, and keeps the last lines for the failure report."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem: str | None = None  # why the file is incomplete
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._splitter = LineSplitter()
        self._file: IO[bytes] | None = None
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            self._give_up(error)

    @property
    def last_lines(self) -> tuple[str, ...]:
        return tuple(self._last_lines)

    def write(self, data: bytes, final: bool = False) -> list[str]:
        """Take in output; returns the lines that are now complete. A full disk sets `problem`; it raises nothing."""
        if self._file is not None:
            left = memoryview(data)
            try:
                while left:  # a disk that becomes full takes a part, and the error comes with the rest
                    left = left[self._file.write(left) :]
            except OSError as error:
                self._give_up(error)
        lines = self._splitter.feed(data, final)
        self._last_lines.extend(lines)
        if final and self._file is not None:
            self._file.close()
            self._file = None
        return lines

    def _give_up(self, error: OSError) -> None:
        self.problem = f"{self.path}: {error.strerror or error}; its output is only on the terminal from here on"
        self._file = None
