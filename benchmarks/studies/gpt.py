"""Batch sizes of a language model: ours, goodput, tuned fixed sizes and the space of DYNAMIX, rehearsed.

    python -m benchmarks.studies.gpt --json FILE [--quick] [--limit-s S]

DYNAMIX asks whether sizes of 32 to 1024 in steps of 25 and 100 are enough for language models. Gradients are real, the
clock is simulated (docs/rehearsal.md); docs/evaluation.md has the protocol. The other modules:

    gpt_cells.py   the training, clusters, contenders, questions with their bars
    gpt_page.py    tables and picture; ratios and verdicts are those of the study of the agent (agent_answers.py)

Every run is a row of gpt/cells.csv, written as soon as it ends, and the same command goes on from there. The page is
made from all rows, so it grows with them. `--quick` runs the first seed of one cluster alone. Delete the rows after a
change of code that decides runs: policies, simulator, rehearsal.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report.page import where
from benchmarks.studies.gpt_cells import cells
from benchmarks.studies.gpt_page import STEM, figures, write_page
from benchmarks.studies.rehearsed_cells import Cell, Table, outcome_of, run_missing
from benchmarks.studies.study import resumable_arguments
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.terminal import make_console, progress_bar

EXPECTED_S = 25.0  # of one run and one core, where none has ended yet


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = resumable_arguments(__doc__, quick="the first seed of one cluster alone")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that its runs end, too
    console, table = make_console(), Table(args.out / STEM / "cells.csv")
    with tempfile.TemporaryDirectory(prefix="dynamix-") as folder:
        every, chosen = cells(False, Path(folder)), cells(args.quick, Path(folder))
        rows = table.rows(chosen)
        each_s = statistics.median(float(row["took_s"]) for row in rows.values()) if rows else EXPECTED_S
        left = len(chosen) - len(rows)
        console.print(f"{left} of {len(chosen)} runs are left: about {left * each_s / args.jobs / 60:.0f} minutes")
        with progress_bar(console) as bar:
            task = bar.add_task("rehearsed runs", total=len(chosen), completed=len(rows))
            run_missing(chosen, table, args.jobs, args.limit_s, lambda done: bar.update(task, completed=done))
    _renew(args.out, every, table, args.json)
    return 0


def _renew(out: Path, every: Sequence[Cell], table: Table, json_file: Path | None) -> None:
    """The page and the figures, from the rows that there are."""
    rows = table.rows(every)
    if not rows:
        print("no run has ended yet; the same command goes on")
        return
    outcomes = {name: outcome_of(row) for name, row in rows.items()}
    took_s = sum(float(row["took_s"]) for row in rows.values())
    told = (
        f"`python -m benchmarks.studies.gpt`: {len(rows)} of {len(every)} cells, {took_s / 60:,.0f} minutes of one "
        f"core on {where()}. Rehearsed: real gradients, simulated clock."
    )
    if len(rows) < len(every):
        told += " The study is not complete: verdicts are of the cells that there are."
    write_page(out, outcomes, told)
    print(told)
    if json_file:
        shown = {"cells": len(rows), "of": len(every)} | figures(outcomes)
        json_file.write_text(json.dumps(shown, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
