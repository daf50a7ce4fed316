"""What the agent of DYNAMIX comes to under two readings of its reward, rehearsed: real gradients, simulated clock.

    python -m benchmarks.studies.paper_mode --json FILE [--quick] [--limit-s S]

The paper's reward subtracts T_iter and does not say in which unit. Here it is the time of an iteration, or that of a
sample. The agents of both readings meet the static sizes of the paper. The policy of the first reading ships; that of
the second is trained here if its file is missing, and the same seed gives the same weights. The other modules:

    paper_mode_cells.py     workloads, rates, clusters, contenders
    paper_mode_answers.py   ratios of times and differences of accuracies, pooled over groups
    paper_mode_page.py      tables and picture

Every run is a row of paper-mode/cells.csv, written as soon as it ends, and the same command goes on from there. The
page is made from all rows, so it grows with them. `--quick` runs the first seed of one workload alone. Delete the rows
after a change of code that decides runs: policies, simulator, rehearsal.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report.page import where
from benchmarks.studies.paper_mode_answers import Readings
from benchmarks.studies.paper_mode_cells import TRAINING, cells, train_reading
from benchmarks.studies.paper_mode_page import STEM, figures, write_page
from benchmarks.studies.rehearsed_cells import Cell, Table, outcome_of, run_missing
from benchmarks.studies.study import resumable_arguments
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.terminal import make_console, progress_bar

EXPECTED_S = 25.0  # of one run and one core, where none has ended yet


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = resumable_arguments(__doc__, quick="the first seed of one workload alone")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that its runs end, too
    began_s, console = time.monotonic(), make_console()
    file = args.out / STEM / "per-sample.npz"
    if not file.exists():
        console.print(f"training {file}: {TRAINING.total_windows:,} windows of random clusters")
        train_reading(file)
    chosen, table = cells(args.quick, file), Table(args.out / STEM / "cells.csv")
    rows = table.rows(chosen)
    each_s = statistics.mean(float(row["took_s"]) for row in rows.values()) if rows else EXPECTED_S
    left = len(chosen) - len(rows)
    console.print(f"{left} of {len(chosen)} runs are left: about {left * each_s / args.jobs / 60:.0f} minutes")
    with progress_bar(console) as bar:
        task = bar.add_task("rehearsed runs", total=len(chosen), completed=len(rows))
        limit_s = args.limit_s - (time.monotonic() - began_s)
        run_missing(chosen, table, args.jobs, limit_s, lambda done: bar.update(task, completed=done))
    _renew(args.out, cells(False, file), table, args.json)
    return 0


def _renew(out: Path, every: Sequence[Cell], table: Table, json_file: Path | None) -> None:
    """The page and the figures, from the rows that there are."""
    rows = table.rows(every)
    if not rows:
        print("no run has ended yet; the same command goes on")
        return
    readings = Readings({name: outcome_of(row) for name, row in rows.items()})
    took_s = sum(float(row["took_s"]) for row in rows.values())
    told = (
        f"`python -m benchmarks.studies.paper_mode`: {len(rows)} of {len(every)} cells, {took_s:,.0f} s of one core on "
        f"{where()}. Rehearsed."
    )
    write_page(out, readings, told)
    print(told)
    if json_file:
        shown = {"cells": len(rows), "of": len(every), "answers": figures(readings)}
        json_file.write_text(json.dumps(shown, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
