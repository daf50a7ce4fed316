"""A study of rehearsed runs: its command says what is left, runs it, and renews page and figures from the rows."""

from __future__ import annotations

import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.report.page import where
from benchmarks.studies.rehearsed_cells import Cell, Name, Row, Table, outcome_of, run_missing
from benchmarks.studies.study import resumable_arguments, stem_of
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.rehearsal.outcome import RehearsalOutcome
from dynamix_ps.terminal import make_console, progress_bar

EXPECTED_S = 25.0  # of one run and one core, where none has ended yet

Outcomes = dict[Name, RehearsalOutcome]


@dataclass(frozen=True, slots=True)
class RehearsedStudy:
    """What tells one study from another.

    Attributes:
        module: of the study in this package; the last part, with dashes, is that of its files.
        about: the docstring of the module.
        quick: which runs `--quick` asks for.
        cells: all cells, or those of a quick study. Gets the folder of what the study keeps, and one to throw away.
        write_page: renews figures and picture of the page in a folder; gets the first line.
        figures: for --json.
        prepare: makes what runs need. Gets the folder of what the study keeps, and whether a run is left.
        counted: the runs that are told about, of those that have ended and of all.
    """

    module: str
    about: str | None
    quick: str
    cells: Callable[[bool, Path, Path], Sequence[Cell]]
    write_page: Callable[[Path, Outcomes, str], None]
    figures: Callable[[Outcomes], Mapping[str, Any]]
    prepare: Callable[[Path, Callable[[], bool]], None] = lambda kept, is_left: None
    counted: Callable[[Outcomes, Sequence[Name]], Outcomes] = lambda outcomes, every: outcomes

    def main(self, arguments: Sequence[str] | None = None) -> int:
        return exit_code_of(lambda: self._main(arguments))

    def _main(self, arguments: Sequence[str] | None) -> int:
        args = resumable_arguments(self.about, self.quick).parse_args(arguments)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that its runs end, too
        began_s, kept = time.monotonic(), args.out / stem_of(self.module)
        table = Table(kept / "cells.csv")
        with tempfile.TemporaryDirectory(prefix="dynamix-") as scratch:
            every, chosen = (self.cells(quick, kept, Path(scratch)) for quick in (False, args.quick))
            self.prepare(kept, lambda: len(table.rows(chosen)) < len(chosen))
            run_left(make_console(), chosen, table, args.jobs, args.limit_s - (time.monotonic() - began_s))
            rows = table.rows(every)
        told = _standing(self.module, rows, len(every))
        print(told)
        ended = {name: outcome_of(row) for name, row in rows.items()}
        outcomes = self.counted(ended, [cell.name for cell in every])
        if not outcomes:
            print("there is nothing to tell yet; the same command goes on")
            return 0
        self.write_page(args.out, outcomes, told)
        if args.json:
            figures = {"cells": len(rows), "of": len(every)} | dict(self.figures(outcomes))
            args.json.write_text(json.dumps(figures, indent=2) + "\n")
        return 0


def run_left(console: Console, chosen: Sequence[Cell], table: Table, jobs: int, limit_s: float) -> None:
    """Say how many runs are left and how long they take, and run them.

    Args:
        limit_s: begin no run after so many seconds.

    Raises JobFailed if a run failed in another way than by an infinite loss.
    """
    rows = table.rows(chosen)
    each_s = statistics.median(float(row["took_s"]) for row in rows.values()) if rows else EXPECTED_S
    left = len(chosen) - len(rows)
    console.print(f"{left} of {len(chosen)} runs are left: about {left * each_s / jobs / 60:.0f} minutes")
    with progress_bar(console) as bar:
        task = bar.add_task("rehearsed runs", total=len(chosen), completed=len(rows))
        run_missing(chosen, table, jobs, limit_s, lambda done: bar.update(task, completed=done))


def _standing(module: str, rows: Mapping[Name, Row], cells: int) -> str:
    """The first line of the page: how many of the cells there are, what they took, and on which machine."""
    took_s = sum(float(row["took_s"]) for row in rows.values())
    told = (
        f"`python -m benchmarks.studies.{module}`: {len(rows)} of {cells} cells, {took_s / 60:,.0f} minutes of one "
        f"core on {where()}. Rehearsed: real gradients, simulated clock."
    )
    if len(rows) < cells:
        told += " The study is not complete: what is said is of the cells that there are."
    return told
