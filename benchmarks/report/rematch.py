"""Our agent against rivals that are level with it: the seeds of the proof and those of the rematch together.

    python -m benchmarks.report.rematch FOLDER... --out benchmarks/results/history

The FOLDERs hold the tables of both grids. The figures of benchmarks/results/history/rematch.md are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report.grid_page import renew
from benchmarks.report.one_race import chance, interval
from benchmarks.report.page import markdown
from benchmarks.suite.grid import load_grid
from benchmarks.suite.statistics import OURS, Race, improvement, relative_time

Row = dict[str, str]


def figures(among: Sequence[Race], folders: str) -> Sequence[str]:
    """One block in Markdown: a line per scenario of the rematch, and one over all of them."""
    grid = load_grid("rematch")
    again = [race for race in among if race.scenario in grid.scenarios]
    rivals = [name for name in grid.contenders if name != OURS]
    rows = [_row(race.scenario, [race], rivals) for race in again]
    rows += [_row(f"**these {len(again)}**", again, rivals)] * (len(again) > 1)
    return [
        f"`python -m benchmarks.report.rematch {folders} --out benchmarks/results/history`.\n\n{markdown(rows)}\n\n"
    ]


def _row(title: str, some: Sequence[Race], rivals: Sequence[str]) -> Row:
    row = {"scenario": title, "runs of each": str(min(len(race.common_seeds(OURS, *rivals)) for race in some))}
    for rival in rivals:
        row[f"t / t_{rival}"] = interval(relative_time(some, OURS, rival))
        row[f"shorter than `{rival}`"] = chance(improvement(some, OURS, rival))
    return row


if __name__ == "__main__":
    raise SystemExit(renew("rematch.md", __doc__, figures))
