"""Policies trained on one family of trainings, used on another: real gradients, simulated clock.

    python -m benchmarks.studies.agent.transfer_rehearsed --json FILE [--quick] [--limit-s S]

Policies learn in the simulator, each in one family of families.py: a small CNN with SGD, the same with Adam, a model
ten times as large, a Transformer. Here each is used on a real training of its own family, and on one of another: CNN to
GPT and Transformer, Transformer to CNN, SGD to Adam, small to large. The policy that ships, the model alone and fixed
sizes train with the same seeds. Where a run is left, policies whose files are missing are trained first, in about four
minutes of a core; they must have the digests of those that made the kept rows. The other modules:

    transfer_rehearsed_cells.py   directions, policies, clusters, contenders, questions
    transfer_rehearsed_page.py    tables and picture; ratios and verdicts are those of the study of the agent

Every run is a row of transfer-rehearsed/cells.csv, written as soon as it ends, and the same command goes on from there.
The page grows with the directions whose runs have all ended on a cluster. `--quick` runs one seed of the first one
alone. Delete the rows after a change of code that decides runs: policies, simulator, rehearsal.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.studies.agent.transfer_rehearsed_cells import are_known, cells, train_policies
from benchmarks.studies.agent.transfer_rehearsed_page import STEM, figures, whole, write_page
from benchmarks.studies.rehearsed_cells import Cell, Table, outcome_of
from benchmarks.studies.rehearsed_study import run_left, standing, write_figures
from benchmarks.studies.study import resumable_arguments
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.terminal import make_console


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = resumable_arguments(__doc__, quick="the first seed of the first direction alone")
    args = parser.parse_args(arguments)
    began_s, policies = time.monotonic(), args.out / STEM
    table = Table(policies / "cells.csv")
    with tempfile.TemporaryDirectory(prefix="dynamix-") as folder:
        every, chosen = (cells(quick, policies, Path(folder)) for quick in (False, args.quick))
        if not are_known(policies) or len(table.rows(chosen)) < len(chosen):
            train_policies(policies)
        run_left(make_console(), chosen, table, args.jobs, args.limit_s - (time.monotonic() - began_s))
    _renew(args.out, every, table, args.json)
    return 0


def _renew(out: Path, every: Sequence[Cell], table: Table, json_file: Path | None) -> None:
    """The page and the figures, from the rows that there are."""
    rows = table.rows(every)
    outcomes = whole({name: outcome_of(row) for name, row in rows.items()}, [cell.name for cell in every])
    told = standing("agent.transfer_rehearsed", rows, len(every))
    print(told)
    if not outcomes:
        print("all runs of no direction have ended yet; the same command goes on")
        return
    write_page(out, outcomes, told)
    write_figures(json_file, len(rows), len(every), figures(outcomes))


if __name__ == "__main__":
    sys.exit(main())
