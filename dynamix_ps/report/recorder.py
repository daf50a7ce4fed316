"""Turns what the roles append to the run folder into windows.csv, plans.csv and events.jsonl, while it happens."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from dynamix_ps.config import Config
from dynamix_ps.messages import WindowRecord
from dynamix_ps.report.run_folder import RunFolder
from dynamix_ps.report.state import PlanState, RunState
from dynamix_ps.report.tail import JsonLinesTail, Line

WINDOW_COLUMNS = ("time_s", *(field.name for field in dataclasses.fields(WindowRecord)))
_NOT_EVENTS = frozenset({"window", "update"})


class RoleFiles:
    """All JSON-lines files of a run, found as they appear: (source, line) in the order of the files."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._tails: dict[Path, JsonLinesTail] = {}

    def read(self) -> Iterator[tuple[str, Line]]:
        """New lines; the journal first, so that a plan is known before a worker applies it."""
        for path in (self._folder.journal_file, *sorted(self._folder.workers_dir.glob("worker-*.jsonl"))):
            tail = self._tails.setdefault(path, JsonLinesTail(path))
            source = "arbitrator" if path == self._folder.journal_file else path.stem
            for line in tail.read():
                yield source, line

    def damaged(self) -> int:
        """Lines so far that could not be read whole."""
        return sum(tail.damaged for tail in self._tails.values())


class Recorder:
    """Owned by the launcher. Call `poll` every second or so, and `close` when all roles have ended."""

    def __init__(self, folder: RunFolder, config: Config, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self.config = config
        policy = config.policy.name if config.mode == "adapt" else f"{config.policy.name}, {config.mode}"
        self.state = RunState(len(config.cluster.workers), folder.path.name, policy)
        self._clock = clock
        self._files = RoleFiles(folder)
        self._damaged = 0
        self._plans_written: set[int] = set()
        self._observed_written = 0
        self._events: IO[str] = folder.events_file.open("a", encoding="utf-8")
        self._windows = _CsvFile(folder.windows_csv, WINDOW_COLUMNS)
        self._plans = _CsvFile(folder.plans_csv, plan_columns(len(config.cluster.workers)))

    def event(self, kind: str, **fields: Any) -> None:
        """Record something the launcher saw itself."""
        line = {"kind": kind, **fields}
        self.state.apply("launcher", line)
        self._write_event({"time_s": self._clock(), "source": "launcher", **line})

    def poll(self) -> None:
        """Take in everything that was written since the last call. Damaged lines are an event, never an error."""
        for source, line in self._files.read():
            try:
                self.state.apply(source, line)
            except (KeyError, TypeError, ValueError, IndexError) as error:
                self.event("unreadable_line", of=source, line_kind=str(line.get("kind")), error=repr(error))
                continue
            if line["kind"] == "window":
                self._windows.write([_cell(line.get(column)) for column in WINDOW_COLUMNS])
            if line["kind"] not in _NOT_EVENTS:
                self._write_event({"time_s": line.get("time_s"), "source": source, **line})
        if self._files.damaged() > self._damaged:
            self.event("damaged_lines", count=self._files.damaged() - self._damaged)
            self._damaged = self._files.damaged()
        self._write_plans()

    def close(self) -> None:
        """Take in the rest, write the plans that never came into force, and close the files."""
        self.poll()
        for version in sorted(self.state.plans.keys() - self._plans_written):
            self._write_plan(self.state.plans[version], "pending")
        self._events.close()
        self._windows.close()
        self._plans.close()

    def _write_event(self, event: Line) -> None:
        self._events.write(json.dumps(event) + "\n")
        self._events.flush()
        self.state.note(event)

    def _write_plans(self) -> None:
        """Write plans whose fate is known: in force on all workers, or overtaken by one that is."""
        newest = max((plan.version for plan in self.state.applied_plans()), default=0)
        for version in sorted(self.state.plans.keys() - self._plans_written):
            if version <= newest:
                whole = len(self.state.plans[version].applied_by) >= len(self.state.workers)
                self._write_plan(self.state.plans[version], "applied" if whole else "superseded")
        for plan in self.state.observed[self._observed_written :]:
            self._plans.write(_plan_row(plan, "observed", len(self.config.cluster.workers)))
        self._observed_written = len(self.state.observed)

    def _write_plan(self, plan: PlanState, status: str) -> None:
        self._plans.write(_plan_row(plan, status, len(self.config.cluster.workers)))
        self._plans_written.add(plan.version)


class _CsvFile:
    """Rows that are on their way to the disk when `write` returns."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self._file: IO[str] = path.open("a", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        if self._file.tell() == 0:
            self.write(list(columns))

    def write(self, row: list[Any]) -> None:
        self._writer.writerow(row)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def plan_columns(n_workers: int) -> tuple[str, ...]:
    """Header of plans.csv; `reward` is that of the plan before, as known at this decision."""
    sizes = tuple(f"batch_{rank}" for rank in range(n_workers))
    proposed = tuple(f"proposed_{rank}" for rank in range(n_workers))
    fixed = ("version", "window", "status", "published_s", "applied_iteration", "applied_s", "reward", "decision_ms")
    return (*fixed, "global_batch", *sizes, *proposed)


def _plan_row(plan: PlanState, status: str, n_workers: int) -> list[Any]:
    whole = status == "applied"
    fixed = [plan.version, plan.window, status, plan.published_s, plan.iteration if whole else None]
    fixed += [plan.applied_s if whole else None, plan.reward, plan.decision_ms, sum(plan.batch_sizes)]
    return [_cell(value) for value in (*fixed, *plan.batch_sizes, *(plan.proposed or (None,) * n_workers))]


def _cell(value: Any) -> Any:
    """NaN and unknown values are empty cells, so that every spreadsheet and reader agrees on them."""
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
