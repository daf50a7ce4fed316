"""Slow, shared and lossy links: our agent against its strongest rivals, and where the time goes.

    python -m benchmarks.report.network FOLDER --out benchmarks/results

FOLDER holds the tables of the grid `network`, which need not be complete: only seeds that all contenders have in all
scenarios count. The figures of benchmarks/results/network.md are replaced.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report.grid_page import with_ours
from benchmarks.report.one_race import UNKNOWN, interval
from benchmarks.report.page import RESULTS, markdown, update_page
from benchmarks.report.report import missing_cells
from benchmarks.suite.grid import load_grid
from benchmarks.suite.results import CellResult
from benchmarks.suite.statistics import (
    OURS,
    STATIC,
    Figure,
    Race,
    difference,
    final_value,
    global_batch_until,
    relative_time,
    samples_per_s,
    samples_to,
)
from benchmarks.suite.tables import read_tables
from dynamix_ps.errors import UsageError
from dynamix_ps.exit_codes import exit_code_of

PAGE = "network.md"
RIVALS = (STATIC, "pid", "goodput")
Row = dict[str, str]


def main() -> int:
    return exit_code_of(_main)


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help=f"of {PAGE}")
    args = parser.parse_args()
    update_page(args.out / PAGE, *figures(args.folder))
    return 0


def figures(folder: Path) -> Sequence[str]:
    """Two blocks in Markdown: our agent against its rivals, and what the time went to.

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
    among = with_ours((cell for cell in results if cell.name.seed in complete), str(folder))
    rows = [against_rivals(race.scenario, [race]) | {"fixed size": _size(race)} for race in among]
    rows.append(dict.fromkeys(rows[0], "") | against_rivals(f"**these {len(among)}**", among))
    to_come = f" Cells to come: {sum(left.values())}." if missing else ""
    return [
        f"`python -m benchmarks.report.network {folder} --out benchmarks/results`.\n\n"
        f"Complete: {len(complete)} of {len(seeds)} seeds.{to_come}\n\n{markdown(rows)}\n\n",
        f"{markdown([where_time_goes(race.scenario, race) for race in among])}\n\n",
    ]


def against_rivals(title: str, some: Sequence[Race]) -> Row:
    """Our agent against its strongest rivals, over several races or in a single one, of which there is more to say."""
    against = {f"t / t_{rival}": interval(relative_time(some, OURS, rival)) for rival in RIVALS}
    race = some[0] if len(some) == 1 else None
    points = difference(race, OURS, STATIC, final_value) if race else None
    return {
        "scenario": title,
        f"s to target, `{OURS}`": interval(race.time_s(OURS, race.target), "{:.1f}") if race else "",
        **against,
        f"final accuracy, points above {STATIC}": interval(points, "{:+.2f}", scale=100) if race else "",
        "seeds": str(len(race.entries[OURS])) if race else "",
        "machine": ", ".join(sorted(_machines(race))) if race else "",
    }


def where_time_goes(title: str, race: Race) -> Row:
    """Means over seeds; samples to the target and the global batch until then of those that arrived."""

    def samples_and_rate(name: str) -> str:
        if name not in race.entries:
            return UNKNOWN
        samples = race.over_seeds(name, lambda cell: samples_to(cell, race.target))
        rate = race.over_seeds(name, samples_per_s)
        arrived = f"{round(samples.value, -2):,.0f}" if samples else "never"
        return f"{arrived} / {f'{round(rate.value, -1):,.0f}' if rate else UNKNOWN}"

    def whole(name: str, figure: Figure) -> str:
        found = race.over_seeds(name, figure) if name in race.entries else None
        return f"{found.value:.0f}" if found else UNKNOWN

    def batch(cell: CellResult) -> float | None:
        return global_batch_until(cell, race.target)

    def waiting(cell: CellResult) -> float | None:
        return None if cell.wait_fraction is None else 100 * cell.wait_fraction

    first, *others = shown = (STATIC, "goodput", OURS)
    return {
        "scenario": title,
        f"`{first}`: samples to {race.metric.in_short(race.target)} / samples per s": samples_and_rate(first),
        **{f"`{name}`: the same": samples_and_rate(name) for name in others},
        "global batch until then, of the latter two": " / ".join(whole(name, batch) for name in others),
        "waiting of the three, % of the time": " / ".join(whole(name, waiting) for name in shown),
    }


def _machines(race: Race) -> set[str]:
    """That our agent and these rivals ran on."""
    cells = (cell for name in (OURS, *RIVALS) for cell in race.entries.get(name, {}).values())
    return {cell.machine or UNKNOWN for cell in cells}


def _size(race: Race) -> str:
    """Samples per worker of the fixed size that won the tuning."""
    return race.tuned.removeprefix(f"{STATIC}-")


if __name__ == "__main__":
    raise SystemExit(main())
