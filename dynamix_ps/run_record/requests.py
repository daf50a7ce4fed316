"""What commands ask of the launcher of a run that goes on: lines in its run folder."""

from __future__ import annotations

import json
import time

from dynamix_ps.run_record.json_lines import JsonLinesTail
from dynamix_ps.run_record.run_folder import RunFolder

LEAVE, JOIN = "leave", "join"


class Requests:
    """Workers that are asked to leave, or that shall be started again, as the launcher reads it."""

    def __init__(self, folder: RunFolder) -> None:
        self._tail = JsonLinesTail(folder.requests_file)

    def read(self) -> list[tuple[str, int]]:
        """What is asked of which rank, since the last call."""
        lines = [line for line in self._tail.read() if line["kind"] in (LEAVE, JOIN)]
        return [(line["kind"], line["rank"]) for line in lines if type(line.get("rank")) is int]


def request(folder: RunFolder, kind: str, rank: int) -> None:
    """Ask that a worker leaves, or joins. Raises OSError."""
    line = json.dumps({"kind": kind, "rank": rank, "time_s": time.time()})
    with folder.requests_file.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
