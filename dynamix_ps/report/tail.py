"""Following a file of JSON lines that another process is still writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Line = dict[str, Any]

_START = b'{"kind"'


class JsonLinesTail:
    """Hands out the complete new lines of a file, each once.

    A line without its newline is left for the next call. A writer that was killed in mid-line and started
    again leaves half a line in front of a whole one: the whole one is kept. What cannot be read is counted
    in `damaged`, never raised: reading a run must not end it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        self._offset = 0

    def read(self) -> list[Line]:
        """Lines completed since the last call; none while the file does not exist."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read()
        except FileNotFoundError:
            return []
        complete, newline, _ = chunk.rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        lines = (self._parse(raw) for raw in complete.split(b"\n") if raw.strip())
        return [line for line in lines if line is not None]

    def _parse(self, raw: bytes) -> Line | None:
        line = _object(raw)
        if line is None:
            self.damaged += 1
            line = _object(raw[max(raw.rfind(_START), 0) :])
        return line


def _object(raw: bytes) -> Line | None:
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    usable = isinstance(value, dict) and isinstance(value.get("kind"), str)
    return value if usable and isinstance(value.get("time_s", 0.0), int | float) else None
