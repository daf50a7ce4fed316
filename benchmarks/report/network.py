"""Slow, shared and lossy links on the present data plane, beside the same scenarios on the plane before.

    python -m benchmarks.report.network FOLDER --before FOLDER --out benchmarks/results

FOLDER holds the tables of the grid `network`, which need not be complete: only seeds that all contenders have in all
scenarios count. The figures of benchmarks/results/network.md are replaced.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.report.grid_page import with_ours
from benchmarks.report.page import RESULTS, markdown, update_page
from benchmarks.report.proof import Row, against_rivals, where_time_goes
from benchmarks.report.report import missing_cells
from benchmarks.suite.grid import load_grid
from benchmarks.suite.statistics import STATIC, Race
from benchmarks.suite.tables import read_tables
from dynamix_ps.errors import UsageError
from dynamix_ps.exit_codes import exit_code_of

PAGE = "network.md"


def main() -> int:
    return exit_code_of(_main)


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--before", type=Path, required=True, metavar="FOLDER", help="tables of the plane before")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help=f"of {PAGE}")
    args = parser.parse_args()
    update_page(args.out / PAGE, *figures(args.folder, args.before))
    return 0


def figures(folder: Path, before: Path) -> Sequence[str]:
    """Two blocks in Markdown: our agent against its rivals on both planes, and what the time went to.

    Raises:
        UsageError: no seed is complete, or there are no tables.
    """
    results = read_tables(folder)
    seeds = load_grid(folder / "grid.yaml").seeds
    missing = [*missing_cells(folder, results), *(cell.name for cell in results if cell.ended == "failed")]
    left = Counter(name.seed for name in missing)
    complete = [seed for seed in seeds if not left[seed]]
    if not complete:
        raise UsageError(f"{folder}: no seed is complete; `dynamix bench run network --out {folder}` goes on")
    now = with_ours((cell for cell in results if cell.name.seed in complete), str(folder))
    scenarios = [race.scenario for race in now]
    earlier = with_ours((cell for cell in read_tables(before) if cell.name.scenario in scenarios), str(before))
    planes = {"now": now, "before": earlier}

    def by_scenario(line: Callable[[Race], Row]) -> list[Row]:
        return [
            {"scenario": scenario, "plane": plane, **line(race)}
            for scenario in scenarios
            for plane, among in planes.items()
            for race in among
            if race.scenario == scenario
        ]

    rows = by_scenario(lambda race: {**against_rivals(race.scenario, [race]), "fixed size": _size(race)})
    for plane, among in planes.items():
        rows.append({**dict.fromkeys(rows[0], ""), **against_rivals(f"**these {len(among)}**", among), "plane": plane})
    to_come = f" Cells to come: {sum(left.values())}." if missing else ""
    return [
        f"`python -m benchmarks.report.network {folder} --before {before} --out benchmarks/results`.\n\n"
        f"Complete: {len(complete)} of {len(seeds)} seeds.{to_come}\n\n{markdown(rows)}\n\n",
        f"{markdown(by_scenario(lambda race: where_time_goes(race.scenario, race)))}\n\n",
    ]


def _size(race: Race) -> str:
    """Samples per worker of the fixed size that won the tuning."""
    return race.tuned.removeprefix(f"{STATIC}-")


if __name__ == "__main__":
    raise SystemExit(main())
