"""Break central lines of the product one at a time, and see that the tests named for each break catch it.

    python -m tests.breaks [--list] [NAME...]

Names are those of breaks or of areas; without a name, all breaks are tried. The exit code is 1 where a break is not
caught, or cannot be tried. Each break is made in a copy of the tree; the tree itself stays as it is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.breaks.catalogue import Break, BreakError, find_place, read_breaks, read_product
from tests.breaks.work_copy import Outcome, WorkCopy

ROOT = Path(__file__).resolve().parents[2]
_UNBROKEN_S = 1800.0


def chosen(breaks: Sequence[Break], names: Sequence[str]) -> list[Break]:
    """The breaks that are named, or whose area is; all if there is no name. Raises BreakError for an unknown name."""
    if unknown := set(names) - {one.name for one in breaks} - {one.area for one in breaks}:
        raise BreakError(f"no such break: {', '.join(sorted(unknown))}; `python -m tests.breaks --list` names all")
    return [one for one in breaks if not names or one.name in names or one.area in names]


def table_of(title: str, *columns: str) -> Table:
    """A table whose long names of tests are folded where the terminal is narrow."""
    table = Table(title=title, show_lines=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def show_list(breaks: Sequence[Break], console: Console) -> None:
    product = read_product(ROOT)
    table = table_of("breaks of central lines", "area", "break", "caught by")
    for one in breaks:
        table.add_row(one.area, f"{one.name}\n{find_place(one, product)}", "\n".join((one.command, *one.tests)))
    console.print(table)


def try_all(breaks: Sequence[Break], folder: Path, console: Console) -> int:
    """Try the breaks in a copy of the tree in `folder`. Returns how many are not caught."""
    product = read_product(ROOT)
    places = {one.name: find_place(one, product) for one in breaks}
    copy = WorkCopy(ROOT, folder)
    tests = list(dict.fromkeys(test for one in breaks for test in one.tests))
    console.print(f"The tests of {len(breaks)} breaks run once on the unbroken copy.")
    unbroken = copy.run(tests, _UNBROKEN_S, keep_compiled=True)
    if not unbroken.passed:
        console.print(unbroken.output, markup=False)
        raise BreakError("the tests fail on the unbroken copy, so they cannot show what a break does")
    table = table_of("breaks of central lines", "break", "caught by", "s")
    caught: Counter[str] = Counter()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(breaks))
        for one in breaks:
            progress.update(task, description=one.name)
            with copy.broken(one):
                outcome = copy.run(one.tests)
            told, by = verdict(one, outcome)
            console.print(f"{told:<12}{outcome.seconds:4.0f} s  {one.name}", highlight=False)
            caught[one.command] += told == "caught"
            table.add_row(f"{one.name}\n{places[one.name]}", f"{told}: {by}", f"{outcome.seconds:.0f}")
            progress.advance(task)
    console.print(table)
    console.print(
        f"{caught.total()} of {len(breaks)} breaks are caught by `make test`, {caught['make check']} by `make check`."
    )
    return len(breaks) - caught.total()


def verdict(one: Break, outcome: Outcome) -> tuple[str, str]:
    """What is told of a break, and by which command and test it is caught, or why it is not."""
    if outcome.trouble:
        return "NOT TRIED", f"{outcome.trouble}\n{escape(outcome.output[-1000:])}"
    if outcome.failed:
        return "caught", f"{one.command}\n{escape(outcome.failed)}"
    return "NOT CAUGHT", "nothing: it needs a test"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a break, or an area")
    parser.add_argument("--list", action="store_true", help="show the breaks, and try none")
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        breaks = chosen(read_breaks(), args.names)
        if args.list:
            show_list(breaks, console)
            return 0
        with tempfile.TemporaryDirectory(prefix="dynamix-breaks-") as folder:
            return 1 if try_all(breaks, Path(folder), console) else 0
    except BreakError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
