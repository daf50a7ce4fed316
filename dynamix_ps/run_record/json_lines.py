"""Files of JSON lines in the run folder: append to one, or follow one while it is written."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from dynamix_ps.bounded_json import value_in
from dynamix_ps.messages import fields_of
from dynamix_ps.run_record.line_fields import fits

logger = logging.getLogger("dynamix")

Line = dict[str, Any]

KEPT_BYTES = 1_000_000  # of lines that the disk does not take
_LOOK_S = 0.05  # between two looks whether it does
LONGEST_BYTES = 16 << 20  # of a line; the reports of a thousand workers on their connections take less than one MB
# What working with a line raises that lacks a field of its kind, or has another value in it than that kind has.
UNUSABLE = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
_START = b'{"kind"'
_MAY_STEER = re.compile(rb"[\\\x7f-\xff]")  # an escape, or what is not ASCII; JSON has control codes as escapes alone


class JsonLines:
    """Writes one JSON object per line. Never raises: what a full disk does not take is kept for the next line.

    Not thread safe. The first line creates file and folder. It ends a line that an earlier writer has not finished, and
    that readers skip.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._out: IO[bytes] | None = None
        self._kept = b""  # whole lines, or the rest of one and whole lines
        self._failed = False

    def open(self) -> None:
        """Create file and folder now. Raises OSError."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._out = self._file.open("a+b", buffering=0)
        if size_bytes := self._out.tell():
            self._out.seek(size_bytes - 1)
            if self._out.read(1) != b"\n":
                self._kept = b"\n" + self._kept

    def write(self, line: Mapping[str, Any], sync: bool = False) -> None:
        """Append one line without buffering. `sync`: wait until it is on disk. NaN and infinities become null."""
        text = _as_json(line).encode() + b"\n"
        if len(self._kept) <= KEPT_BYTES:
            self._kept += text
        self._write_kept(sync)

    def close(self, patience_s: float = 0.0) -> None:
        """Write what is kept, and wait so long for room on the disk. No line follows."""
        deadline_s = time.monotonic() + patience_s
        while not self._write_kept() and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)

    def _write_kept(self, sync: bool = False) -> bool:
        """Returns whether nothing is kept any more."""
        try:
            if self._out is None and self._kept:
                self.open()
            while self._kept and self._out is not None:
                self._kept = self._kept[self._out.write(self._kept) :]
            if sync and self._out is not None:
                os.fsync(self._out)
        except OSError as error:
            if not self._failed:
                logger.warning(
                    "cannot write %s (%s); up to %d kB of its lines are kept until there is room",
                    *(self._file, error, KEPT_BYTES // 1000),
                )
            self._failed = True
        return not self._kept


class Journal:
    """The lines of the arbitrator, each with its kind and time."""

    def __init__(self, file: Path, now_s: Callable[[], float] = time.time) -> None:
        """`now_s`: unix time. Raises OSError if the file cannot be opened."""
        self._now_s, self._lines = now_s, JsonLines(file)
        self._lines.open()

    def write(self, kind: str, *, sync: bool = False, **fields: Any) -> None:
        """Append one line, as `JsonLines.write` does."""
        self._lines.write({"kind": kind, "time_s": self._now_s(), **fields}, sync)

    def close(self) -> None:
        """Write what is kept, if there is room on the disk. No line follows."""
        self._lines.close()


def _as_json(line: Mapping[str, Any]) -> str:
    """One line of JSON. The encoder takes most lines as they are; only the others are converted first."""
    try:
        return json.dumps(line, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(plain(line), allow_nan=False)


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
    half a line in front of a complete one, which is kept. Lines that are unreadable, too long, too deep or have values
    that no role writes are counted in `damaged` and never raise, because reading a run must not end it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        self._offset = 0
        self._is_in_long_line = False  # whose beginning was left out

    def read(self) -> list[Line]:
        """Lines completed since the last call; none while the file does not exist."""
        lines: list[Line] = []
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                while chunk := file.read(LONGEST_BYTES):
                    complete, newline, _ = chunk.rpartition(b"\n")
                    if newline:
                        lines += self._lines(complete)
                    elif len(chunk) < LONGEST_BYTES:
                        break
                    else:
                        complete = chunk
                        self.damaged += not self._is_in_long_line
                        self._is_in_long_line = True
                    self._offset = file.seek(self._offset + len(complete) + len(newline))
        except FileNotFoundError:
            return lines
        return lines

    def rest(self) -> list[Line]:
        """The line behind the last line end, of a writer that has ended, if it is whole."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                return self._lines(file.read(LONGEST_BYTES))
        except FileNotFoundError:
            return []

    def _lines(self, complete: bytes) -> list[Line]:
        raws = complete.split(b"\n")
        if self._is_in_long_line:
            self._is_in_long_line = False
            del raws[0]
        lines = (self._parse(raw) for raw in raws if raw.strip())
        return [line for line in lines if line is not None]

    def _parse(self, raw: bytes) -> Line | None:
        line = line_in(raw)
        if line is None:
            self.damaged += 1
            begin = raw.rfind(_START)
            line = line_in(raw[begin:]) if begin > 0 else None
        return line


def line_in(raw: bytes) -> Line | None:
    """The object of one line; none if it is not one that roles write.

    Its text is made harmless here, for terminals, summaries and files that show it.
    """
    try:
        value = value_in(raw)
    except ValueError:
        return None
    if not isinstance(value, dict) or "kind" not in value or not fits(value):
        return None
    harmless: Line = _shown(value) if _MAY_STEER.search(raw) else value
    return harmless


def _shown(value: Any) -> Any:
    """The value with characters that steer a terminal, or are in no text, as escapes: `\\x1b`. Line ends stay."""
    if isinstance(value, str):
        return "".join(
            char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode() for char in value
        )
    if isinstance(value, dict):
        return {_shown(name): _shown(item) for name, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, list) else value
