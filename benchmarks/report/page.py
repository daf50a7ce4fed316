"""Pages of results: tables, pictures, and Markdown files whose figures stand between two marks."""

from __future__ import annotations

import csv
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.suite.machine_speed import machine_name
from dynamix_ps.errors import UsageError

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
RESULTS = Path("benchmarks/results")
DOTS_PER_INCH = 90
COLOURS = 64  # of a picture
KIB, MIB = 1 << 10, 1 << 20


def where() -> str:
    """The machine, and the versions of Python and numpy, for the end of a sentence."""
    return f"{machine_name()}, Python {platform.python_version()}, numpy {np.__version__}"


def size_text(size_bytes: int) -> str:
    """As in 64 KiB or 35.2 MiB."""
    return f"{size_bytes / MIB:.4g} MiB" if size_bytes >= MIB else f"{size_bytes / KIB:.4g} KiB"


def write_csv(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write all rows or leave the file as it is; all rows must have the same keys. Raises OSError."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    with partial.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    os.replace(partial, file)


def draw(file: Path, into: Callable[[Any], None]) -> None:
    """Draw one PNG file with a palette, a third as large as with full colours. Raises OSError."""
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(layout="constrained", dpi=DOTS_PER_INCH)
    into(figure)
    drawn = BytesIO()
    figure.savefig(drawn, format="png")
    # The octree keeps the colours of thin lines apart; the median cut merges them.
    small = Image.open(drawn).convert("RGB").quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    small.save(file, "PNG", optimize=True)


def markdown(table: Sequence[Mapping[str, str]]) -> str:
    """A table, one row per mapping; all rows have the keys of the first."""
    names = list(table[0])
    lines = [names, ["---"] * len(names), *([row[name] for name in names] for row in table)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def update_page(file: Path, *blocks: str | None) -> None:
    """Replace the text between each pair of marks by one block, in order; the rest of the page stays as it is.

    Args:
        blocks: None leaves the text of its pair as it is.

    Raises:
        UsageError: the page lacks a mark, or cannot be read or written.
    """
    try:
        empty = f"{BEGIN}\n{END}\n" * len(blocks)
        rest = file.read_text(encoding="utf-8") if file.exists() else f"# {file.stem}\n\n{empty}"
        done = ""
        for number, block in enumerate(blocks, start=1):
            before, begin, rest = rest.partition(BEGIN)
            now, end, rest = rest.partition(END)
            if not begin or not end:
                raise UsageError(
                    f"{file}: has no line {BEGIN!r} with {END!r} after it for table {number} of {len(blocks)}; "
                    "figures go between the two"
                )
            done += before + BEGIN + (now if block is None else f"\n{block}") + END
        file.write_text(done + rest, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}; give the folder of the page by --out") from error
