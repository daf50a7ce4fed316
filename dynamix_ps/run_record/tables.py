"""The CSV files of a run: their columns, and the writing of their rows."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from dynamix_ps.messages import LinkView, ServerView, SystemSample, WindowRecord
from dynamix_ps.run_record.json_lines import Line
from dynamix_ps.run_record.model import PlanState
from dynamix_ps.run_record.run_folder import RunFolder


def _names(kind: type, *without: str) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind) if field.name not in without)


WINDOW_COLUMNS = ("time_s", *_names(WindowRecord))
LINK_COLUMNS = ("time_s", "window", *_names(LinkView))
SERVER_COLUMNS = ("time_s", "window", *_names(ServerView, "system"), *_names(SystemSample))


class Tables:
    """windows.csv, plans.csv, links.csv and servers.csv of one run folder."""

    def __init__(self, folder: RunFolder, n_workers: int) -> None:
        self._n_workers = n_workers
        self._windows = _CsvFile(folder.windows_csv, WINDOW_COLUMNS)
        self._plans = _CsvFile(folder.plans_csv, plan_columns(n_workers))
        self._links = _CsvFile(folder.links_csv, LINK_COLUMNS)
        self._servers = _CsvFile(folder.servers_csv, SERVER_COLUMNS)

    def add(self, line: Line) -> None:
        """Write the rows of a line that the run's state has accepted. Most kinds of lines have none."""
        if line["kind"] == "window":
            self._windows.write(line)
        elif line["kind"] == "links":
            when = {"time_s": line.get("time_s"), "window": line.get("window")}
            for link in line["links"]:
                self._links.write({**link, **when})
            for server in line["servers"]:
                self._servers.write({**server, **server.get("system", {}), **when})

    def plan(self, plan: PlanState, status: str) -> None:
        """Write one plan; `status` is applied, superseded, pending or observed."""
        self._plans.write(_plan_row(plan, status, self._n_workers))

    def close(self) -> None:
        for file in (self._windows, self._plans, self._links, self._servers):
            file.close()


class _CsvFile:
    """One CSV file. Every row is flushed when `write` returns."""

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self._file: IO[str] = path.open("a", encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        if self._file.tell() == 0:
            self._write(columns)

    def write(self, values: dict[str, Any]) -> None:
        self._write(_cell(values.get(column)) for column in self._columns)

    def _write(self, row: tuple[str, ...] | Iterator[Any]) -> None:
        self._writer.writerow(row)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def plan_columns(n_workers: int) -> tuple[str, ...]:
    """Header of plans.csv. `reward` is that of the plan before, as known at this decision."""
    sizes = tuple(f"batch_{rank}" for rank in range(n_workers))
    proposed = tuple(f"proposed_{rank}" for rank in range(n_workers))
    fixed = ("version", "window", "status", "published_s", "applied_iteration", "applied_s", "reward", "decision_ms")
    return (*fixed, "global_batch", *sizes, *proposed)


def _plan_row(plan: PlanState, status: str, n_workers: int) -> dict[str, Any]:
    whole = status == "applied"
    fixed = [plan.version, plan.window, status, plan.published_s, plan.iteration if whole else None]
    fixed += [plan.applied_s if whole else None, plan.reward, plan.decision_ms, sum(plan.batch_sizes)]
    values = (*fixed, *plan.batch_sizes, *(plan.proposed or (None,) * n_workers))
    return dict(zip(plan_columns(n_workers), values, strict=True))


def _cell(value: Any) -> Any:
    """The cell of a value; unknown ones (NaN, None) are empty, which every spreadsheet understands."""
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
