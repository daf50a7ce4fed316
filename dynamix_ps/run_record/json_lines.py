"""Files of JSON lines in the run folder: append to one, or follow one while it is written."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

logger = logging.getLogger("dynamix")

Line = dict[str, Any]

_START = b'{"kind"'


class JsonLines:
    """Writes one JSON object per line. Never raises: after the first disk error it warns once and writes no more.

    Not thread safe. The first line creates file and folder.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._out: IO[bytes] | None = None
        self._failed = False

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line without buffering; NaN and infinities become null."""
        if self._failed:
            return
        try:
            if self._out is None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._out = self._file.open("ab", buffering=0)
            self._out.write((json.dumps(plain(line), allow_nan=False) + "\n").encode())
        except OSError as error:
            self._failed = True
            logger.warning("cannot write %s (%s); its lines are lost from here on", self._file, error)


def fields_of(item: Any) -> dict[str, Any]:
    """The fields of a slotted dataclass by name, with their values unchanged."""
    return {name: getattr(item, name) for name in item.__slots__}


def plain(value: Any) -> Any:
    """The value in JSON's types: NaN and infinities become null, tuples lists, dataclasses objects."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (int, str)):  # the most frequent types first: a line may hold thousands of values
        return value
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return plain(fields_of(value)) if dataclasses.is_dataclass(value) else value


class JsonLinesTail:
    """Returns the complete new lines of a file, each once.

    A line without its newline is left for the next call. A writer that was killed within a line and restarted leaves
    half a line in front of a complete one, which is kept. Unreadable lines are counted in `damaged` and never raise,
    because reading a run must not end it.
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
