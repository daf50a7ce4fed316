"""Cuts a stream of bytes into lines of text."""

from __future__ import annotations

import codecs

MAX_LINE = 8192  # characters; longer output without a newline is cut into such pieces


class LineSplitter:
    """Cuts a stream of bytes into lines. A read may end within a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def feed(self, data: bytes, final: bool = False) -> list[str]:
        """Lines that end in `data`; with `final`, also the last line, which has no newline."""
        *lines, self._rest = (self._rest + self._decoder.decode(data, final)).split("\n")
        while len(self._rest) > MAX_LINE:
            lines.append(self._rest[:MAX_LINE])
            self._rest = self._rest[MAX_LINE:]
        if final and self._rest:
            lines.append(self._rest)
            self._rest = ""
        return [_last_state(line) if "\r" in line else line for line in lines]


def _last_state(line: str) -> str:
    """What a terminal shows in the end of a line that a progress bar rewrites with carriage returns."""
    return next((part for part in reversed(line.split("\r")) if part), "")
