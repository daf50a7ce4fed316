"""What the agent is worth: rehearsed runs of five workloads on ten clusters, against its rivals and against its bars.

    python -m benchmarks.studies.agent.worth --json FILE [--quick] [--plan] [--limit-s SECONDS]

Gradients are real, the clock is simulated (docs/rehearsal.md). docs/evaluation.md explains the protocol: what is
paired, what an interval means, how many seeds it takes. The other modules of the study:

    workloads.yaml         what is trained
    clusters.py            the clusters: scenarios that ship, for these trainings
    cells.py               contenders, and the questions with their bars
    sizes.py               the fixed sizes that are tried
    answers.py             ratios, their two parts, and verdicts
    page.py                tables and pictures

Every run is a row of agent/cells.csv, written as soon as it ends; the same command goes on from there, and renews the
page. A change of a policy's weights or of a setting makes the runs that it concerns anew. Delete the table after a
change of code that decides runs: policies, simulator, rehearsal. `--quick` runs the part of the cells that decides
first: two workloads. `--plan` says what is left and how long it takes, and runs nothing.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.studies.agent.answers import Runs
from benchmarks.studies.agent.cells import QUESTIONS, WORKLOADS, cells, core_seconds
from benchmarks.studies.agent.page import figures_of, write_page
from benchmarks.studies.agent.sizes import FURTHER, further_sizes
from benchmarks.studies.rehearsed_cells import Cell, Name, Row, Table, outcome_of, run_missing
from benchmarks.studies.study import resumable_arguments
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.rehearsal.outcome import EvaluationTarget
from dynamix_ps.rehearsal.power import pairs_needed
from dynamix_ps.run_record.evaluations import higher_is_better
from dynamix_ps.terminal import progress_bar

SCATTER = 0.12  # of the log ratio of a pair that learns differently, as found in trainings of five workloads
WORTH_SEEING = 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = resumable_arguments(__doc__, quick="only the cells that decide first, of two workloads")
    parser.add_argument("--plan", action="store_true", help="say what is left, and run nothing")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that its runs end, too
    table = Table(args.out / "agent" / "cells.csv")
    with tempfile.TemporaryDirectory(prefix="dynamix-") as folder:
        asked = cells(False, Path(folder))
        chosen = cells(args.quick, Path(folder)) if args.quick else whole(asked, table)
        console = Console(stderr=True)
        console.print(plan(chosen, table.rows(chosen), args.jobs), highlight=False, soft_wrap=True)
        if args.plan:
            return 0
        left = _run(console, chosen, table, args.jobs, args.limit_s)
        while not (left or args.quick) and len(more := whole(asked, table)) > len(chosen):
            chosen = more
            left = _run(console, chosen, table, args.jobs, args.limit_s)
        every = whole(asked, table)
        rows = table.rows(every)
    if left:
        console.print(f"{left:,} runs are left; the same command goes on", highlight=False, soft_wrap=True)
    runs = runs_of(rows)
    if outside := table.outside(every):
        console.print(f"{outside} rows of the table are of no cell of this study, and count nowhere", highlight=False)
    page = write_page(args.out, runs, len(rows), len(every), sum(float(row["took_s"]) for row in rows.values()))
    console.print(f"page: {page}", highlight=False, soft_wrap=True)
    if args.json:
        answers = [runs.answer(question, tuple(WORKLOADS)) for question in QUESTIONS]
        args.json.write_text(json.dumps({"cells": len(rows), "answers": figures_of(answers)}, indent=2) + "\n")
    return 0


def whole(asked: Sequence[Cell], table: Table) -> list[Cell]:
    """What the questions need, and the fixed sizes that come on top by what the table has (sizes.py)."""
    known = table.rows(asked)
    found = list(asked)
    while len(more := further_sizes(asked, runs_of(known))) > len(found) - len(asked):
        found = [*asked, *more]
        known = table.rows(found)
    return found


def plan(chosen: Sequence[Cell], rows: Mapping[Name, Row], jobs: int) -> str:
    """What is left, how long it takes, and what the seeds can show."""
    missing = [cell.name for cell in chosen if cell.name not in rows]
    hours = core_seconds(missing, rows) / jobs / 3600
    return (
        f"{len(missing):,} of {len(chosen):,} runs are left: about {hours:.1f} hours, {jobs} at a time. "
        f"With pairs that scatter by {100 * SCATTER:g} %, "
        f"{pairs_needed(SCATTER, WORTH_SEEING)} pairs show a difference of {100 * WORTH_SEEING:g} %."
    )


def runs_of(rows: Mapping[Name, Row]) -> Runs:
    """The runs of the table."""
    targets = {
        name: [EvaluationTarget(one.metric, value, bool(higher_is_better(one.metric))) for value in one.thresholds]
        for name, one in WORKLOADS.items()
    }
    return Runs({name: outcome_of(row) for name, row in rows.items()}, targets, further=tuple(FURTHER))


def _run(console: Console, chosen: Sequence[Cell], table: Table, jobs: int, limit_s: float) -> int:
    with progress_bar(console) as bar:
        task = bar.add_task("rehearsed runs", total=len(chosen))
        return run_missing(chosen, table, jobs, limit_s, lambda done: bar.update(task, completed=done))


if __name__ == "__main__":
    sys.exit(main())
