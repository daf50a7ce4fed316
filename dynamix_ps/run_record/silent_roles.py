"""Which servers have stopped reporting, from the files in which they report at a steady pace."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from dynamix_ps.run_record.json_lines import line_in

_TAIL_BYTES = 64 << 10
_REPORTS_MISSED = 3  # chosen by us: a busy machine delays one report, not three
_REPORTS_READ = 5


class Silent(NamedTuple):
    """A role of which nothing was heard for so long."""

    name: str
    silent_s: float


def silent_servers(roles_dir: Path, now_s: float) -> list[Silent]:
    """Servers whose next three reports are overdue. `now_s`: Unix time. A server that never reported is left out."""
    found = []
    for file in sorted(roles_dir.glob("server-*.jsonl")):
        times_s = _report_times_s(file)
        if len(times_s) < 2:
            continue
        pace_s = median(later - earlier for earlier, later in pairwise(times_s))
        if now_s - times_s[-1] > _REPORTS_MISSED * pace_s:
            found.append(Silent(file.stem, now_s - times_s[-1]))
    return found


def _report_times_s(file: Path) -> list[float]:
    """Unix times of the last reports in the file, oldest first."""
    try:
        with file.open("rb") as lines:
            lines.seek(max(lines.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
            whole = lines.read().split(b"\n")[:-1]
    except OSError:
        return []
    lines_read = [line for line in map(line_in, whole) if line is not None]  # the first one of the tail may be cut
    times_s = [line["time_s"] for line in lines_read if line["kind"] == "role" and "time_s" in line]
    return times_s[-_REPORTS_READ:]
