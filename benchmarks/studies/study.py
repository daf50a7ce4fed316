"""What studies share: options, and the files of a result: NAME.csv, NAME.png and, in NAME.md, its table."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report.page import RESULTS, draw, markdown, update_page, where, write_csv


@dataclass(frozen=True, slots=True)
class Study:
    """The result of a study."""

    rows: Sequence[Mapping[str, Any]]  # of the CSV file
    table: Sequence[Mapping[str, str]]  # of the page
    draw: Callable[[Any], None]  # into a matplotlib Figure


def run_study(name: str, doc: str | None, measure: Callable[[bool], Study], simulated: bool = True) -> None:
    """Run a study from the command line.

    Args:
        name: name of its module and, with dashes, of its files.
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
    stem = name.replace("_", "-")
    args.out.mkdir(parents=True, exist_ok=True)
    write_csv(args.out / f"{stem}.csv", study.rows)
    draw(args.out / f"{stem}.png", study.draw)
    command = f"python -m benchmarks.studies.{name}" + " --quick" * args.quick
    block = f"`{command}`: {seconds:,.0f} s on {where()}.{' Simulated.' * simulated}\n\n{markdown(study.table)}\n"
    update_page(args.out / f"{stem}.md", block)
    print(block)


def resumable_arguments(doc: str | None, quick: str) -> argparse.ArgumentParser:
    """Options of a study that keeps every run as soon as it ends, and goes on where it was. `quick`: about --quick."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help=quick)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, help="rehearsed runs at a time (default: %(default)s)")
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no run after this time")
    return parser
