"""The command that renews the figures of a page from the tables of a grid."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.report.page import RESULTS, update_page
from benchmarks.suite.results import CellResult
from benchmarks.suite.statistics import OURS, Race, races, with_static
from benchmarks.suite.tables import read_tables
from dynamix_ps.errors import UsageError
from dynamix_ps.exit_codes import exit_code_of


def renew(page: str, about: str | None, figures: Callable[[Sequence[Race], str], Sequence[str]]) -> int:
    """Command line: replace what stands between the marks of `page` by the blocks of `figures(races, folder)`.

    Gives the exit code.

    The races are those in which both static sizes and our policy took part. `folder` is what the command was given.
    """

    def command() -> int:
        parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("folder", type=Path, metavar="FOLDER")
        parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help=f"of {page}")
        args = parser.parse_args()
        named = str(args.folder)
        update_page(args.out / page, *figures(with_ours(read_tables(args.folder), named), named))
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
