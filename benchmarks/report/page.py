"""Results as pages: figures stand between two marks of a Markdown file, the rest of which is written by hand."""

from __future__ import annotations

import csv
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.suite.machine_speed import machine_name
from dynamix_ps.errors import UsageError
from dynamix_ps.report.plots.plots import DOTS_PER_INCH

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
RESULTS = Path("benchmarks/results")


def where() -> str:
    """The machine and what counts of its software, for the end of a sentence."""
    return f"{machine_name()}, Python {platform.python_version()}, numpy {np.__version__}"


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


def update_page(file: Path, *blocks: str) -> None:
    """Replace what is between the marks, the first pair by the first block; the rest of the page is written by hand.

    Raises:
        UsageError: the page lacks a mark, or cannot be read or written.
    """
    try:
        empty = f"{BEGIN}\n{END}\n" * len(blocks)
        rest = file.read_text(encoding="utf-8") if file.exists() else f"# {file.stem}\n\n{empty}"
        done = ""
        for number, block in enumerate(blocks, start=1):
            before, begin, rest = rest.partition(BEGIN)
            _, end, rest = rest.partition(END)
            if not begin or not end:
                raise UsageError(
                    f"{file}: has no line {BEGIN!r} with {END!r} after it for table {number} of {len(blocks)}; "
                    "figures go between the two"
                )
            done += f"{before}{BEGIN}\n{block}{END}"
        file.write_text(done + rest, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}; give the folder of the page by --out") from error
