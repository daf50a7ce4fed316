"""What a worker writes into the run folder, and reads there of the servers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from dynamix_ps.messages import RoleReport, fields_of
from dynamix_ps.run_record.iteration_mark import IterationMark
from dynamix_ps.run_record.json_lines import JsonLines
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.run_record.silent_roles import Silent, silent_servers


class WorkerFiles:
    """The files of one worker. No call raises."""

    def __init__(self, folder: RunFolder, rank: int) -> None:
        self._folder = folder
        self._lines = JsonLines(folder.worker_file(rank))
        self._mark = IterationMark(folder.iteration_file(rank))
        self._role_lines: JsonLines | None = None

    def write(self, line: Mapping[str, Any]) -> None:
        """A line of the worker's records."""
        self._lines.write(line)

    def write_report(self, report: RoleReport) -> None:
        """What this role has seen of its connections and its machine."""
        if self._role_lines is None:
            self._role_lines = JsonLines(self._folder.role_file(report.name))
        self._role_lines.write({"kind": "role", **fields_of(report)})

    def completed(self, iterations: int) -> None:
        """So many iterations are complete: the launcher knows where this worker is, however it ends."""
        self._mark.write(iterations)

    def silent_servers(self) -> list[Silent]:
        """Servers that have stopped reporting."""
        return silent_servers(self._folder.roles_dir, time.time())

    def close(self, room_s: float = 0.0) -> None:
        """Wait so long for room on a full disk: the launcher judges the end of this worker by its lines."""
        self._lines.close(room_s)
        self._mark.close()
