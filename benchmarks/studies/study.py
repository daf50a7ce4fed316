"""What studies share: options, and the files of a result: NAME.csv, NAME.png and, in NAME.md, its tables."""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report.page import RESULTS, draw, markdown, update_page, where, write_csv
from benchmarks.studies.kept_rows import Cell, Row, run_missing, took_s


@dataclass(frozen=True, slots=True)
class Study:
    """The result of a study."""

    rows: Sequence[Mapping[str, Any]]  # of the CSV file
    table: Sequence[Mapping[str, str]]  # of the page
    draw: Callable[[Any], None]  # into a matplotlib Figure


@dataclass(frozen=True, slots=True)
class Report:
    """What the rows of a study say."""

    tables: str  # of the page, in Markdown
    draw: Callable[[Any], None]  # into a matplotlib Figure
    figures: Mapping[str, Any]  # for --json


def run_study(name: str, doc: str | None, measure: Callable[[bool], Study], simulated: bool = True) -> None:
    """Run a study from the command line.

    Args:
        name: of its module in this package; its last part, with dashes, is that of its files.
        measure: makes the result; its argument asks for a quick run, which only shows that the study works.
        simulated: whether the page says that its figures are simulated.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="too small for meaningful figures; shows that it works")
    args = parser.parse_args()
    began_s = time.monotonic()
    study = measure(args.quick)
    seconds = time.monotonic() - began_s
    stem = stem_of(name)
    args.out.mkdir(parents=True, exist_ok=True)
    write_csv(args.out / f"{stem}.csv", study.rows)
    draw(args.out / f"{stem}.png", study.draw)
    command = f"python -m benchmarks.studies.{name}" + " --quick" * args.quick
    block = f"`{command}`: {seconds:,.0f} s on {where()}.{' Simulated.' * simulated}\n\n{markdown(study.table)}\n"
    update_page(args.out / f"{stem}.md", block)
    print(block)


def stem_of(name: str) -> str:
    """Of the files of a study, by its module."""
    return name.rpartition(".")[2].replace("_", "-")


def resumable_arguments(doc: str | None, quick: str, several: bool = True) -> argparse.ArgumentParser:
    """Options of a study that keeps every run as soon as it ends, and goes on where it was.

    Args:
        quick: about --quick.
        several: whether runs can go on at the same time.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help=quick)
    if several:
        cores = len(os.sched_getaffinity(0))
        parser.add_argument("--jobs", type=int, default=cores, help="runs at a time (default: %(default)s)")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no run after this time")
    return parser


def run_kept_study(
    name: str,
    doc: str | None,
    cells_of: Callable[[bool], Sequence[Cell]],
    run: Callable[[Cell], list[Row]],
    report: Callable[[Sequence[Row]], Report],
    arguments: Sequence[str] | None = None,
    simulated: bool = True,
) -> None:
    """Run a study of one machine, cell by cell (kept_rows.py); the page comes when all have ended.

    Args:
        name: as in `run_study`.
        cells_of: all cells; its argument asks for a quick study, whose files have names of their own.
        run: makes the rows of one cell.
        report: what all rows say.
        simulated: whether the page says that its figures are simulated.
    """
    args = resumable_arguments(doc, quick="too small for meaningful figures; shows that it works").parse_args(arguments)
    stem = stem_of(name) + "-quick" * args.quick
    args.out.mkdir(parents=True, exist_ok=True)
    rows, left = run_missing(cells_of(args.quick), run, args.out / f"{stem}.csv", args.limit_s, args.jobs)
    if left:
        print(f"{left} cells are left; the same command goes on")
        return
    found = report(rows)
    command = f"python -m benchmarks.studies.{name}" + " --quick" * args.quick
    block = (
        f"`{command}`: {took_s(rows):,.0f} s of one core on {where()}.{' Simulated.' * simulated}\n\n{found.tables}\n"
    )
    update_page(args.out / f"{stem}.md", block)
    draw(args.out / f"{stem}.png", found.draw)
    print(block)
    if args.json:
        args.json.write_text(json.dumps(found.figures, indent=2) + "\n")
