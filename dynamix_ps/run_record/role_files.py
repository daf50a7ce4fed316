"""The files that the roles of a run append to, read while they grow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dynamix_ps.run_record.json_lines import JsonLinesTail, Line
from dynamix_ps.run_record.run_folder import RunFolder


class RoleLine(NamedTuple):
    """One line, and who wrote it where."""

    source: str  # arbitrator, worker-0, server-0, ...
    file: Path
    line: Line


class RoleFiles:
    """All JSON-lines files of a run, also those that appear later."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._tails: dict[Path, JsonLinesTail] = {}

    def read(self) -> Iterator[RoleLine]:
        """New lines. The journal comes first, so that a plan is known before a worker applies it."""
        workers, roles = self._folder.workers_dir.glob("worker-*.jsonl"), self._folder.roles_dir.glob("*.jsonl")
        for path in (self._folder.journal_file, *sorted(workers), *sorted(roles)):
            tail = self._tails.setdefault(path, JsonLinesTail(path))
            source = "arbitrator" if path == self._folder.journal_file else path.stem
            for line in tail.read():
                yield RoleLine(source, path, line)

    def damaged(self) -> int:
        """The number of damaged lines so far."""
        return sum(tail.damaged for tail in self._tails.values())
