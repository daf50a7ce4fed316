"""Times of sums by their size, on one host and between hosts: a table and a picture of what `comm_curve` has measured.

    python -m benchmarks.report.data_plane FOLDER --out benchmarks/results

FOLDER has one or more JSON files of `benchmarks.parts.comm_curve`. The figures of benchmarks/results/data-plane.md and
the picture beside it are replaced.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report.page import MIB, RESULTS, draw, markdown, size_text, update_page
from benchmarks.report.pictures import OTHERS_BARS, OURS_BARS, REFERENCE_LINE
from dynamix_ps.errors import UsageError
from dynamix_ps.exit_codes import exit_code_of

PAGE, PICTURE = "data-plane.md", "data-plane.png"
PARTS = {"one_host": "On one host", "hosts": "Between hosts", "models": "Whole iterations of large models, one host"}

Row = Mapping[str, Any]


def main() -> int:
    return exit_code_of(_main)


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help=f"of {PAGE}")
    args = parser.parse_args()
    measured = read(args.folder)
    update_page(args.out / PAGE, figures(measured, str(args.folder)))
    if "one_host" in measured or "hosts" in measured:
        draw(args.out / PICTURE, lambda figure: picture(figure, measured))
    return 0


def read(folder: Path) -> dict[str, list[Row]]:
    """The rows of every part of PARTS that some file of the folder has; each row says on which `machine` it is from.

    Raises:
        UsageError: there is no such file, or one cannot be read.
    """
    found: dict[str, list[Row]] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            machine = content["machine"]
            for part in PARTS.keys() & content.keys():
                found.setdefault(part, []).extend({**row, "machine": machine} for row in content[part])
        except (OSError, ValueError, KeyError) as error:
            raise UsageError(f"{file}: {error}; expected what `comm_curve --json` writes") from error
    if not found:
        raise UsageError(f"{folder}: no measurements; `python -m benchmarks.parts.comm_curve --json FILE` makes them")
    return found


def figures(measured: Mapping[str, Sequence[Row]], folder: str) -> str:
    """One block in Markdown: a table per part."""
    blocks = [f"`python -m benchmarks.report.data_plane {folder} --out benchmarks/results`.\n"]
    for part, title in PARTS.items():
        if rows := measured.get(part):
            machines = ", ".join(sorted({row["machine"] for row in rows}))
            bars = [bar["met"] for row in rows for bar in row["bars"].values()]
            table = markdown([_cells(row, part) for row in rows])
            blocks.append(f"### {title}\n\n{machines}. {sum(bars)} of {len(bars)} bars met.\n\n{table}\n")
    return "\n".join(blocks) + "\n"


def _cells(row: Row, part: str) -> dict[str, str]:
    gloo, spread = row["bars"]["ratio_to_gloo"], row["spread_to_gloo"]
    name, value = {"one_host": ("workers", "workers"), "hosts": ("hosts", "case"), "models": ("model", "model")}[part]
    cells = {
        name: str(row[value]),
        "size": size_text(row["size_bytes"]),
        "ours, ms": _number(row["ours_ms"]),
        "gloo, ms": _number(row["gloo_ms"]),
        "of gloo": f"{_bold(row['ratio_to_gloo'], gloo['met'])} [{spread[0]:.2f}, {spread[1]:.2f}]",
        "at most": f"{gloo['at_most']:.2f}",
    }
    if part == "one_host":
        floor = row["bars"]["ratio_to_floor"]
        cells |= {"floor, ms": _number(row["floor_ms"]), "of the floor": _bold(floor["figure"], floor["met"])}
    if part == "hosts":
        cells["limits, ms"] = f"{_number(row['limit_ms'])} and {_number(row['gloo_limit_ms'])}"
        cells["possible"] = f"{row['limit_ms'] / row['gloo_limit_ms']:.2f}"
    if part == "models":
        cells["alone, ms"] = _number(row["alone_ms"])
        cells["different weights"] = str(row["bars"]["different_weights"]["figure"])
    cells["CPU, ms"] = f"{_number(1e3 * row['cpu_s']['ours'])} and {_number(1e3 * row['cpu_s']['gloo'])}"
    return cells


def _bold(ratio: float, met: bool) -> str:
    return f"{ratio:.2f}" if met else f"**{ratio:.2f}**"


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def picture(figure: Any, measured: Mapping[str, Sequence[Row]]) -> None:
    """Left: time by size on one host, one panel for each number of workers. Right: our part of gloo's time by hosts."""
    panels: list[tuple[str, Callable[[Any, Sequence[Row]], None], list[Row]]] = []
    for workers in sorted({row["workers"] for row in measured.get("one_host", [])}):
        rows = [row for row in measured["one_host"] if row["workers"] == workers]
        panels.append((f"one host, {workers} workers", _by_size, rows))
    if "hosts" in measured:
        panels.append(("between hosts", _by_case, list(measured["hosts"])))
    figure.set_size_inches(4.2 * len(panels), 4.0)
    for axes, (title, draw_rows, rows) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        axes.set_title(title, fontsize=10)
        draw_rows(axes, rows)


def _by_size(axes: Any, rows: Sequence[Row]) -> None:
    sizes = [row["size_bytes"] / MIB for row in rows]
    for system, colour, style in (("gloo", OTHERS_BARS, "-"), ("ours", OURS_BARS, "-"), ("floor", REFERENCE_LINE, ":")):
        axes.plot(sizes, [row[f"{system}_ms"] for row in rows], style, color=colour, marker=".", label=system)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("size (MiB)")
    axes.set_ylabel("time of a sum (ms)")
    axes.legend(frameon=False)


def _by_case(axes: Any, rows: Sequence[Row]) -> None:
    cases = list(dict.fromkeys(row["case"] for row in rows))
    for place, case in enumerate(cases):
        of_case = [row for row in rows if row["case"] == case]
        width = 0.8 / len(of_case)
        for number, row in enumerate(of_case):
            left = place - 0.4 + number * width
            axes.bar(left, row["ratio_to_gloo"], 0.9 * width, align="edge", color=OURS_BARS, alpha=0.5 + 0.2 * number)
        limit = of_case[0]["limit_ms"] / of_case[0]["gloo_limit_ms"]
        axes.plot([place - 0.45, place + 0.45], [limit] * 2, color=REFERENCE_LINE, label=None if place else "possible")
    axes.axhline(1.0, color="#777777", linewidth=0.8)
    axes.set_xticks(range(len(cases)), cases, rotation=45, ha="right", fontsize=8)
    axes.set_ylabel("our time / gloo's")
    axes.set_xlabel(f"bars: {', '.join(size_text(size) for size in sorted({row['size_bytes'] for row in rows}))}")
    axes.legend(frameon=False)


if __name__ == "__main__":
    raise SystemExit(main())
