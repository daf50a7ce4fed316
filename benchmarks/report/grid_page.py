"""The command that renews the figures of a page from the tables of a grid, or of several grids together."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.report.page import RESULTS, update_page
from benchmarks.suite.results import CellResult
from benchmarks.suite.statistics import OURS, Race, races, with_static
from benchmarks.suite.tables import read_tables
from dynamix_ps.errors import UsageError
from dynamix_ps.exit_codes import exit_code_of

_APART = 1000  # more than anybody's seeds


def renew(page: str, about: str | None, figures: Callable[[Sequence[Race], str], Sequence[str]]) -> int:
    """Command line: replace what stands between the marks of `page` by the blocks of `figures(races, folders)`.

    Gives the exit code.

    The races are those in which both static sizes and our policy took part. `folders` is what the command was given,
    one or several; the same seed in two of them is two runs.
    """

    def command() -> int:
        parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("folders", type=Path, metavar="FOLDER", nargs="+")
        parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help=f"of {page}")
        args = parser.parse_args()
        named = " ".join(map(str, args.folders))
        among = with_ours(every_run(args.folders), named)
        update_page(args.out / page, *figures(among, named))
        return 0

    return exit_code_of(command)


def with_ours(cells: Iterable[CellResult], named: str) -> list[Race]:
    """Races in which both static sizes and our policy took part.

    Raises:
        UsageError: there is none; `named` is what the cells were read from.
    """
    among = [race for race in with_static(races(cells)) if OURS in race.entries]
    if not among:
        raise UsageError(f"{named}: `{OURS}` and a static size have no scenario in common; run both first")
    return among


def every_run(folders: Sequence[Path]) -> Iterator[CellResult]:
    """Cells of all folders, seeds moved apart: seed 2 of the third is 2002, and meets rivals of its own folder."""
    for index, folder in enumerate(folders):
        for cell in read_tables(folder):
            yield replace(cell, name=replace(cell.name, seed=_APART * index + cell.name.seed))
