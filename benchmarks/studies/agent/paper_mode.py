"""What the agent of DYNAMIX comes to under two readings of its reward, rehearsed: real gradients, simulated clock.

    python -m benchmarks.studies.agent.paper_mode --json FILE [--quick] [--limit-s S]

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

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.studies.agent.paper_mode_answers import Readings
from benchmarks.studies.agent.paper_mode_cells import TRAINING, cells, train_reading
from benchmarks.studies.agent.paper_mode_page import STEM, figures, write_page
from benchmarks.studies.rehearsed_cells import Cell, Table, outcome_of
from benchmarks.studies.rehearsed_study import run_left, standing, write_figures
from benchmarks.studies.study import resumable_arguments
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.terminal import make_console


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = resumable_arguments(__doc__, quick="the first seed of one workload alone")
    args = parser.parse_args(arguments)
    began_s, console = time.monotonic(), make_console()
    file = args.out / STEM / "per-sample.npz"
    if not file.exists():
        console.print(f"training {file}: {TRAINING.total_windows:,} windows of random clusters")
        train_reading(file)
    chosen, table = cells(args.quick, file), Table(args.out / STEM / "cells.csv")
    run_left(console, chosen, table, args.jobs, args.limit_s - (time.monotonic() - began_s))
    _renew(args.out, cells(False, file), table, args.json)
    return 0


def _renew(out: Path, every: Sequence[Cell], table: Table, json_file: Path | None) -> None:
    """The page and the figures, from the rows that there are."""
    rows = table.rows(every)
    if not rows:
        print("no run has ended yet; the same command goes on")
        return
    readings = Readings({name: outcome_of(row) for name, row in rows.items()})
    told = standing("agent.paper_mode", rows, len(every))
    write_page(out, readings, told)
    print(told)
    write_figures(json_file, len(rows), len(every), {"answers": figures(readings)})


if __name__ == "__main__":
    sys.exit(main())
