"""Tables for the terminal: what there is to run, and how far a grid has come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from rich.table import Table

from benchmarks.suite import grid as grids
from benchmarks.suite import scenario as scenarios
from benchmarks.suite.contenders import CONTENDERS
from benchmarks.suite.grid import Grid
from benchmarks.suite.grid_folder import GridFolder
from benchmarks.suite.metric import METRICS
from benchmarks.suite.results import CellName, CellResult, Ended
from benchmarks.suite.tuning import beaten
from benchmarks.suite.workloads import load_workloads


def outcome(result: CellResult) -> str:
    """How a cell ended, in a few words."""
    if result.ended != "done":
        return result.ended
    target = METRICS[result.metric].in_short(result.thresholds[-1])
    reached_s = result.time_to_s(result.thresholds[-1])
    return f"{target} not reached" if reached_s is None else f"{target} after {reached_s:.1f} s"


def shipped_tables() -> Iterator[Table]:
    """Grids, scenarios, workloads and contenders, each with a line about it."""
    for title, lines in {
        "grids": [(name, grids.load_grid(name).about) for name in grids.shipped()],
        "scenarios": [(name, scenarios.load_scenario(name).about) for name in scenarios.shipped()],
        "workloads": [(name, one.about) for name, one in load_workloads().items()],
        "contenders": [(name, one.what) for name, one in CONTENDERS.items()],
    }.items():
        table = Table(title, "about", expand=False)
        for line in lines:
            table.add_row(*line)
        yield table


def cells_table(grid: Grid, folder: GridFolder) -> Table:
    """A line per scenario, workload and contender, a column per seed. Raises UsageError for a damaged result."""
    cells = grid.cells()
    results = {cell: folder.result(cell) for cell in cells}
    there = [result for result in results.values() if result is not None]
    lost = beaten(grid, there) - {result.name for result in there}
    counts = {ended: sum(result.ended == ended for result in there) for ended in get_args(Ended)}
    counted = ", ".join(f"{count} {ended}" for ended, count in counts.items() if count or ended == "done")
    table = Table(title=f"{folder.path}: {len(cells)} cells, {counted}, {len(cells) - len(there) - len(lost)} to come")
    for name in ("scenario", "workload", "contender", *(f"seed {seed}" for seed in grid.seeds)):
        table.add_column(name)
    for scenario in grid.scenarios:
        for workload in grid.workloads:
            for contender in grid.single_contenders:
                names = [CellName(scenario, workload, contender, seed) for seed in grid.seeds]
                row = (_entry(results[name], name in lost) if name in results else "" for name in names)
                table.add_row(scenario, workload, contender, *row)
            table.add_section()
    return table


def _entry(result: CellResult | None, lost: bool) -> str:
    if result is None:
        return "lost the tuning" if lost else "-"
    return outcome(result)
