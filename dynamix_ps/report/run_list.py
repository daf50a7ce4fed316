"""The runs of a folder, each in a line. Reads little of each, so that a folder of hundreds is listed at once."""

from __future__ import annotations

import math
import os
import re
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from dynamix_ps.bounded_json import value_in
from dynamix_ps.errors import UsageError
from dynamix_ps.run_record.json_lines import UNUSABLE, line_in
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.run_record.values import number, ratio

SILENT_S = 120.0  # a run without an end whose workers have written nothing for so long is over (chosen by us)
_LONGEST_BYTES = 64 << 20  # of a summary: that of a thousand workers with all evaluations takes some MB
_TAIL_BYTES = 64 << 10  # of a worker's file, which hold its newest window
_STAMP = re.compile(r"-(\d{8}T\d{6}Z)(-|$)")  # in the name of a run that was launched


HEAD = ("run", "policy", "workers", "samples/s", "gain", "end")  # of a table of runs


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One run; None is not known."""

    folder: RunFolder
    began_s: float  # Unix time
    policy: str | None
    workers: int | None
    samples_per_s: float | None  # mean of the run; of one that goes on, of its newest windows
    gain: float | None  # samples per second at the end over those of the first sizes
    end: str
    goes_on: bool = False

    @property
    def cells(self) -> tuple[str, ...]:
        """Its row in a table of runs, see HEAD."""
        return (
            self.folder.path.name,
            self.policy or "-",
            "-" if self.workers is None else str(self.workers),
            "-" if self.samples_per_s is None else f"{self.samples_per_s:,.0f}",
            "-" if self.gain is None else f"{self.gain:.2f}",
            self.end,
        )


def runs_in(folder: Path, now_s: float | None = None) -> list[ListedRun]:
    """All runs in a folder, the newest first.

    Args:
        now_s: Unix time; the clock's if not given.

    Raises:
        UsageError: it is no folder, or cannot be read, or is itself a run folder.
    """
    try:
        found = [RunFolder(Path(entry.path)) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}; give the folder that holds run folders") from error
    if RunFolder(folder).workers_dir.is_dir():
        raise UsageError(f"{folder}: is a run folder itself; give the folder that holds it")
    now_s = time.time() if now_s is None else now_s
    runs = [_listed(run, now_s) for run in found if run.workers_dir.is_dir()]
    return sorted(runs, key=lambda run: (run.began_s, run.folder.path.name), reverse=True)


def _listed(folder: RunFolder, now_s: float) -> ListedRun:
    """By its summary if it has ended, otherwise by its manifest and the files of its workers."""
    summary, began_s = _object(folder.summary_json), _began_s(folder)
    if (exit_code := _exit_code(summary)) is not None:
        end = "finished" if exit_code == 0 else f"exit code {exit_code}: {_first_line(summary.get('reason'))}"
        rate, gain = _number(summary.get("samples_per_s")), summary.get("gain")
        policy, workers = _policy(summary), _count(summary.get("workers"))
        ratio_of = _number(gain.get("samples_per_s_ratio")) if isinstance(gain, dict) else None
        return ListedRun(folder, began_s, policy, workers, rate, ratio_of, end)
    files = list(folder.workers_dir.glob("worker-*.jsonl"))
    newest_s = max((file.stat().st_mtime for file in files), default=began_s)
    goes_on = now_s - newest_s < SILENT_S
    end = "goes on" if goes_on else "no end: stopped or killed"
    rates = [rate for file in files if (rate := _newest_rate(file)) is not None]
    rate = sum(rates) if rates and goes_on else None
    return ListedRun(folder, began_s, _policy(_object(folder.manifest_file)), len(files), rate, None, end, goes_on)


def has_ended(folder: RunFolder) -> bool:
    """Whether its summary says how."""
    return _exit_code(_object(folder.summary_json)) is not None


def _exit_code(summary: dict[str, Any]) -> int | None:
    return _count(summary.get("exit_code"))


def _object(file: Path) -> dict[str, Any]:
    """The JSON object of a file; an empty one where there is none."""
    try:
        if file.stat().st_size > _LONGEST_BYTES:
            return {}
        value = value_in(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _began_s(folder: RunFolder) -> float:
    """By the name that the launcher gave it, otherwise by the time of its sub-folder."""
    if stamp := _STAMP.search(folder.path.name):
        try:
            return datetime.strptime(stamp[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc).timestamp()
        except ValueError:  # such as month 13
            pass
    return folder.workers_dir.stat().st_mtime


def _newest_rate(file: Path) -> float | None:
    """Samples per second of the last window in a worker's file."""
    try:
        with file.open("rb") as raw:
            raw.seek(max(raw.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
            tail = raw.read(_TAIL_BYTES)
        for line in map(line_in, reversed(tail.split(b"\n"))):
            if line is not None and line["kind"] == "window":
                return _number(ratio(number(line["samples"]), number(line["duration_s"])))
    except (OSError, *UNUSABLE):
        pass
    return None


def _policy(told: dict[str, Any]) -> str | None:
    name, mode = told.get("policy"), told.get("mode", "adapt")
    return None if name is None else str(name) if mode == "adapt" else f"{name}, {mode}"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _first_line(text: object) -> str:
    return next(iter(str(text).splitlines()), "")
