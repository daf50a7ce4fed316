"""Batch sizes of a language model: ours, goodput, tuned fixed sizes and the space of DYNAMIX, rehearsed.

    python -m benchmarks.studies.language_models.gpt --json FILE [--quick] [--limit-s S]

DYNAMIX asks whether sizes of 32 to 1024 in steps of 25 and 100 are enough for language models. Gradients are real, the
clock is simulated (docs/rehearsal.md); docs/evaluation.md has the protocol. The other modules:

    gpt_cells.py   the training, clusters, contenders, questions with their bars
    gpt_page.py    tables and picture; ratios and verdicts are those of the study of the agent (agent/answers.py)

Every run is a row of gpt/cells.csv, written as soon as it ends, and the same command goes on from there. The page is
made from all rows, so it grows with them. `--quick` runs the first seed of one cluster alone. Delete the rows after a
change of code that decides runs: policies, simulator, rehearsal.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.studies.language_models.gpt_cells import cells
from benchmarks.studies.language_models.gpt_page import STEM, figures, write_page
from benchmarks.studies.rehearsed_cells import Cell, Table, outcome_of
from benchmarks.studies.rehearsed_study import run_left, standing, write_figures
from benchmarks.studies.study import resumable_arguments
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.terminal import make_console


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = resumable_arguments(__doc__, quick="the first seed of one cluster alone")
    args = parser.parse_args(arguments)
    table = Table(args.out / STEM / "cells.csv")
    with tempfile.TemporaryDirectory(prefix="dynamix-") as folder:
        every, chosen = cells(False, Path(folder)), cells(args.quick, Path(folder))
        run_left(make_console(), chosen, table, args.jobs, args.limit_s)
    _renew(args.out, every, table, args.json)
    return 0


def _renew(out: Path, every: Sequence[Cell], table: Table, json_file: Path | None) -> None:
    """The page and the figures, from the rows that there are."""
    rows = table.rows(every)
    if not rows:
        print("no run has ended yet; the same command goes on")
        return
    outcomes = {name: outcome_of(row) for name, row in rows.items()}
    told = standing("language_models.gpt", rows, len(every))
    write_page(out, outcomes, told)
    print(told)
    write_figures(json_file, len(rows), len(every), figures(outcomes))


if __name__ == "__main__":
    sys.exit(main())
