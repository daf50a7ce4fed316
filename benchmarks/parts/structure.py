"""How large the code is, and what it must not grow beyond: lines, classes, imports, folders.

    python -m benchmarks.parts.structure [--json FILE]

The exit code is 1 where a figure is above its limit; `make lint` asks. A limit is what the code has reached: a change
that makes a figure smaller lowers its limit. `goal` is where the figure is to come.

    lines          of Python; core: the product without the parts that pyproject.toml calls removable
    inheritance    classes of ours in the longest line from a class upwards
    largest class  methods and attributes of a class with all that it inherits from classes of ours; the attributes of
                   records (dataclasses, named tuples, sections of the cluster file) are fields, and do not count
    modules        of ours that `import dynamix_ps.torch` loads; packages with nothing but a map do not count
    folder         files of Python in the largest one; without tests
    decision       modules and calls between them, from a closed window to a plan (decision_path.py), medians
    class names    public ones that several modules of the product give to different classes
    results        size of benchmarks/results
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import tomllib
from rich.console import Console
from rich.table import Table

from benchmarks.parts.sources.class_table import GENERATED, ClassTable
from benchmarks.parts.sources.decision_path import follow

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("dynamix_ps", "server_hooks", "worker_hooks")
REMOVABLE = "removable: "  # how contracts begin
NOT_KEPT = {"cells", "logs", "report.html"}  # of runs; git leaves them out
_LOADED = f"""
import sys, types, dynamix_ps.torch
def has_code(module):
    return any(not name.startswith("__") and type(one) is not types.ModuleType for name, one in vars(module).items())
print(sum(name.split(".")[0] in {PRODUCT!r} and has_code(one) for name, one in sys.modules.items()))
"""


class Limit(NamedTuple):
    """`most`: what the figure must not exceed. `goal`: what it is to come to."""

    most: float
    goal: float


LIMITS = {
    "lines of the product": Limit(75_600, 58_000),
    "lines of its core": Limit(60_000, 42_000),
    "lines of benchmarks": Limit(25_400, 20_000),
    "lines of tests": Limit(88_800, 60_000),
    "depth of inheritance": Limit(2, 2),
    "methods of the largest class": Limit(40, 40),
    "attributes of the largest class": Limit(20, 20),
    "modules behind dynamix_ps.torch": Limit(100, 100),
    "files of the largest folder": Limit(25, 25),
    "modules of a decision": Limit(28, 15),
    "calls of a decision": Limit(106, 60),
    "class names with several meanings": Limit(0, 0),
    "megabytes of results": Limit(3.5, 4),
}


def removable() -> dict[str, list[str]]:
    """The modules of each part that can be taken away, by its name: those of its contract in pyproject.toml."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return {
        contract["name"].removeprefix(REMOVABLE): contract["protected_modules"]
        for contract in contracts
        if contract["name"].startswith(REMOVABLE)
    }


def files_of(modules: Iterable[str], root: Path) -> Iterator[Path]:
    """The files of these modules and packages."""
    for module in modules:
        place = root / module.replace(".", "/")
        yield from place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]


def figures() -> Iterator[tuple[str, float]]:
    """Every figure, by its name in LIMITS."""
    files = {folder: _sources(folder) for folder in (*PRODUCT, "benchmarks", "tests")}
    product = [file for folder in PRODUCT for file in files[folder]]
    yield "lines of the product", sum(map(_lines, product))
    away = {file for part in removable().values() for file in files_of(part, ROOT)}
    yield "lines of its core", sum(_lines(file) for file in product if file not in away)
    yield "lines of benchmarks", sum(map(_lines, files["benchmarks"]))
    yield "lines of tests", sum(map(_lines, files["tests"]))
    table = ClassTable(ROOT, list(PRODUCT))
    yield "depth of inheritance", max(map(table.depth, table))
    yield "methods of the largest class", max(len(table.methods(one)) for one in table)
    yield (
        "attributes of the largest class",
        max(len(table.attributes(one)) for one in table if not table.is_record(one)),
    )
    loaded = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True, cwd=ROOT)
    yield "modules behind dynamix_ps.torch", int(loaded.stdout)
    yield "files of the largest folder", max(Counter(file.parent for file in [*product, *files["benchmarks"]]).values())
    paths = asyncio.run(follow())
    yield "modules of a decision", median(len(path.modules) for path in paths)
    yield "calls of a decision", median(path.calls.total() for path in paths)
    yield "class names with several meanings", len(table.ambiguous())
    results = (file for file in (ROOT / "benchmarks" / "results").rglob("*") if not NOT_KEPT & set(file.parts))
    yield "megabytes of results", sum(file.stat().st_size for file in results if file.is_file()) / 1e6


def _sources(folder: str) -> list[Path]:
    return [file for file in sorted((ROOT / folder).rglob("*.py")) if GENERATED not in file.name]


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def _shown(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def main(measured: Callable[[], Iterator[tuple[str, float]]] = figures) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    args = parser.parse_args()
    found = dict(measured())
    table = Table(title="structure of the code")
    for column in ("figure", "now", "at most", "goal"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for name, value in found.items():
        table.add_row(name, *map(_shown, (value, *LIMITS[name])))
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")
    passed = [name for name, value in found.items() if value > LIMITS[name].most]
    for name in passed:
        print(
            f"error: {name}: {_shown(found[name])}, at most {_shown(LIMITS[name].most)}; find what can go, "
            "or raise the limit in benchmarks/parts/structure.py and say why",
            file=sys.stderr,
        )
    return 1 if passed else 0


if __name__ == "__main__":
    sys.exit(main())
