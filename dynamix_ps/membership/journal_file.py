"""The coordinator's journal on disk: one JSON line per decision. All records of a decision are there, or none."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from dynamix_ps.bounded_json import value_in
from dynamix_ps.membership.journal import Record, as_plain, from_plain


class JournalFile:
    """Only one coordinator may have it open."""

    def __init__(self, file: Path) -> None:
        """Open, or create. `records` are those of earlier coordinators; a last line that was cut off is removed.

        Raises:
            OSError: the file cannot be opened.
            ValueError: another line is damaged.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        self._out = file.open("ab", buffering=0)
        content = file.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]
        self.records = _records(file, complete)
        self._out.truncate(len(complete))

    def append(self, records: Sequence[Record]) -> None:
        """Returns when they are on disk.

        Raises:
            OSError: they are not; then nothing that follows from them may be sent.
        """
        line = json.dumps([as_plain(record) for record in records]).encode() + b"\n"
        written = self._out.write(line)
        if written < len(line):
            raise OSError(f"the journal of members: {written} of {len(line)} bytes were written; is the disk full?")
        os.fsync(self._out)


def _records(file: Path, content: bytes) -> tuple[Record, ...]:
    records: list[Record] = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            records += [from_plain(record) for record in value_in(line)]
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{file}, line {number}: not a decision on members ({error}).\n"
                "Next: go on from the newest checkpoint, in a new run folder"
            ) from error
    return tuple(records)
