"""A whole run as series over time, for the plots. Times are seconds since the first worker began to train."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from dynamix_ps.report.model import TIME_PARTS
from dynamix_ps.report.recorder import RoleFiles
from dynamix_ps.report.run_folder import RunFolder
from dynamix_ps.report.tail import Line
from dynamix_ps.report.values import number


@dataclass(slots=True)
class WorkerSeries:
    """One worker: batch sizes as steps, and every window's time per iteration in milliseconds by part."""

    rank: int
    batch_s: list[float] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    window_s: list[float] = field(default_factory=list)  # end of the window
    window_plan: list[int] = field(default_factory=list)  # plan in force at its end
    window_mixed: list[bool] = field(default_factory=list)  # a switch or a stall lies inside
    part_ms: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in TIME_PARTS})


@dataclass(slots=True)
class History:
    """What the plots show."""

    title: str
    workers: dict[int, WorkerSeries]
    accuracy_s: list[float]
    accuracy: list[float]
    plan_s: list[float]  # when rank 0 had a new plan in force
    target_accuracy: float | None
    end_s: float


def read_history(folder: RunFolder) -> History:
    """Read the run folder; whatever is missing is empty."""
    told = [told for told in RoleFiles(folder).read() if "time_s" in told.line]
    lines = [line for _, file, line in told if file.parent == folder.workers_dir]
    starts = [line["time_s"] for line in lines if line["kind"] == "started"]
    began = min(starts or (line["time_s"] for line in lines), default=0.0)
    title, target = _from_manifest(folder)
    history = History(title, {}, [], [], [], target, 0.0)
    for line in lines:
        elapsed = max(line["time_s"] - began, 0.0)
        history.end_s = max(history.end_s, elapsed)
        try:
            _add(history, line, elapsed)
        except (KeyError, TypeError, ValueError, IndexError):
            continue  # the recorder has put it into events.jsonl as unreadable_line
    history.workers = dict(sorted(history.workers.items()))
    return history


def _add(history: History, line: Line, elapsed: float) -> None:
    worker = history.workers.setdefault(line["rank"], WorkerSeries(line["rank"]))
    if line["kind"] == "started":
        worker.batch_s.append(elapsed)
        worker.batch_sizes.append(line["batch_size"])
    elif line["kind"] == "plan_applied":
        worker.batch_sizes.append(line["batch_sizes"][worker.rank])
        worker.batch_s.append(elapsed)
        if worker.rank == 0:
            history.plan_s.append(elapsed)
    elif line["kind"] == "window":
        _add_window(worker, line, elapsed)
    elif line["kind"] == "evaluation":
        history.accuracy.append(number(line["accuracy"]))
        history.accuracy_s.append(elapsed)


def _add_window(worker: WorkerSeries, line: Line, elapsed: float) -> None:
    times = {part: 1e3 * number(line[f"{part}_s"]) / line["iterations"] for part in TIME_PARTS}
    worker.window_plan.append(line["plan_version"])
    worker.window_mixed.append(bool(line.get("flagged")))
    worker.window_s.append(elapsed)
    for part, milliseconds in times.items():
        worker.part_ms[part].append(milliseconds)


def _from_manifest(folder: RunFolder) -> tuple[str, float | None]:
    """(title of the run, accuracy asked for)."""
    try:
        manifest = json.loads(folder.manifest_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return folder.path.name, None
    return f"{folder.path.name}, policy {manifest.get('policy')}", manifest.get("target_accuracy")
