"""The command of a study of rehearsed runs: says what is left, runs it, and tells what there is."""

from __future__ import annotations

import json
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.report.page import where
from benchmarks.studies.rehearsed_cells import Cell, Name, Row, Table, run_missing
from dynamix_ps.terminal import progress_bar

EXPECTED_S = 25.0  # of one run and one core, where none has ended yet


def run_left(console: Console, chosen: Sequence[Cell], table: Table, jobs: int, limit_s: float) -> None:
    """Say how many runs are left and how long they take, and run them. SIGTERM ends them, too.

    Args:
        limit_s: begin no run after so many seconds.

    Raises JobFailed if a run failed in another way than by an infinite loss.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    rows = table.rows(chosen)
    each_s = statistics.median(float(row["took_s"]) for row in rows.values()) if rows else EXPECTED_S
    left = len(chosen) - len(rows)
    console.print(f"{left} of {len(chosen)} runs are left: about {left * each_s / jobs / 60:.0f} minutes")
    with progress_bar(console) as bar:
        task = bar.add_task("rehearsed runs", total=len(chosen), completed=len(rows))
        run_missing(chosen, table, jobs, limit_s, lambda done: bar.update(task, completed=done))


def standing(module: str, rows: Mapping[Name, Row], cells: int) -> str:
    """The first line of the page: how many of the cells there are, what they took, and on which machine."""
    took_s = sum(float(row["took_s"]) for row in rows.values())
    told = (
        f"`python -m benchmarks.studies.{module}`: {len(rows)} of {cells} cells, {took_s / 60:,.0f} minutes of one "
        f"core on {where()}. Rehearsed: real gradients, simulated clock."
    )
    if len(rows) < cells:
        told += " The study is not complete: what is said is of the cells that there are."
    return told


def write_figures(file: Path | None, done: int, cells: int, figures: Mapping[str, Any]) -> None:
    """Write the figures of so many cells, if there is to be a file. Raises OSError."""
    if file:
        file.write_text(json.dumps({"cells": done, "of": cells} | dict(figures), indent=2) + "\n")
