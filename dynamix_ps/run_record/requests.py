"""What commands ask of the launcher of a run that goes on: lines in its run folder."""

from __future__ import annotations

import json
import time

from dynamix_ps.run_record.json_lines import JsonLinesTail
from dynamix_ps.run_record.run_folder import RunFolder

_LEAVE = "leave"


class LeaveRequests:
    """Workers that are asked to leave, as the launcher reads it."""

    def __init__(self, folder: RunFolder) -> None:
        self._tail = JsonLinesTail(folder.requests_file)

    def read(self) -> list[int]:
        """The ranks since the last call."""
        return [line["rank"] for line in self._tail.read() if line["kind"] == _LEAVE and type(line.get("rank")) is int]


def request_leave(folder: RunFolder, rank: int) -> None:
    """Ask that a worker leaves. Raises OSError."""
    line = json.dumps({"kind": _LEAVE, "rank": rank, "time_s": time.time()})
    with folder.requests_file.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
