"""The output of a role: its file, and the last lines for the report of a failure."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import IO

from dynamix_ps.launch.messages.line_splitter import LineSplitter

LAST_LINES = 20


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
