"""What a study leaves behind: NAME.csv, NAME.png and, between two marks in NAME.md, table, command and machine."""

from __future__ import annotations

import argparse
import csv
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dynamix_ps.report.manifest import machine
from dynamix_ps.report.plots import DOTS_PER_INCH

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
RESULTS = Path("docs/results")


@dataclass(frozen=True, slots=True)
class Study:
    """What was found."""

    rows: Sequence[Mapping[str, Any]]  # of the CSV file
    table: Sequence[Mapping[str, str]]  # of the page
    draw: Callable[[Any], None]  # into a matplotlib Figure


def run_study(name: str, doc: str | None, measure: Callable[[bool], Study]) -> None:
    """The command of a study.

    Args:
        name: of its module and, with dashes, of its files.
        measure: is told whether to be quick, which shows that it works and nothing else.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="far too small to mean anything; shows that it runs")
    args = parser.parse_args()
    began_s = time.monotonic()
    study = measure(args.quick)
    seconds = time.monotonic() - began_s
    stem = name.replace("_", "-")
    args.out.mkdir(parents=True, exist_ok=True)
    write_csv(args.out / f"{stem}.csv", study.rows)
    draw(args.out / f"{stem}.png", study.draw)
    command = f"python -m benchmarks.studies.{name}" + " --quick" * args.quick
    block = f"`{command}`: {seconds:,.0f} s on {where()}. Simulated.\n\n{markdown(study.table)}\n"
    update_page(args.out / f"{stem}.md", block)
    print(block)


def where() -> str:
    """The machine and what counts of its software."""
    about = machine()
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    return f"{about['cpu_model'] or platform.machine()}, {len(os.sched_getaffinity(0))} cores, {versions}"


def write_csv(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """All rows must have the same names. Raises OSError."""
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def draw(file: Path, into: Callable[[Any], None]) -> None:
    """Raises OSError."""
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained", dpi=DOTS_PER_INCH)
    into(figure)
    figure.savefig(file)


def markdown(table: Sequence[Mapping[str, str]]) -> str:
    """A table of a page."""
    names = list(table[0])
    lines = [names, ["---"] * len(names), *([row[name] for name in names] for row in table)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def update_page(file: Path, block: str) -> None:
    """Replace what is between the marks; the rest of the page is written by hand. Raises OSError."""
    text = file.read_text(encoding="utf-8") if file.exists() else f"# {file.stem}\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    file.write_text(f"{before}{BEGIN}\n{block}{END}{after}", encoding="utf-8")
