"""Which fixed sizes of a grid need no more cells: tried with some of the seeds, only the best goes on. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.suite.grid import Grid
from benchmarks.suite.results import CellName, CellResult
from benchmarks.suite.statistics import races


def beaten(grid: Grid, results: Iterable[CellResult]) -> set[CellName]:
    """Cells of sizes that lost the tuning, with the seeds beyond it; none of a race that is not tuned yet."""
    tuned_by = [result for result in results if result.name.seed in grid.tuning_seeds]
    entries = set(grid.static_entries)
    best = {
        (race.scenario, race.workload): race.tuned
        for race in races(tuned_by)
        if all(set(race.sizes.get(name, ())) == set(grid.tuning_seeds) for name in entries)
    }
    return {
        cell
        for cell in grid.cells()
        if cell.contender in entries
        and cell.seed not in grid.tuning_seeds
        and best.get((cell.scenario, cell.workload), cell.contender) != cell.contender
    }
