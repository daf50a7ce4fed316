"""The page of the network scenarios compares whole seeds, and says how many there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.report.network import figures, where_time_goes
from benchmarks.suite.grid import load_grid
from benchmarks.suite.results import CellName, CellResult, PlanPoint
from benchmarks.suite.statistics import races, with_static
from benchmarks.suite.tables import write_tables
from dynamix_ps.errors import UsageError
from tests.unit.benchmarks.suite.made_up_cells import made_up

GRID = """\
name: mine
seeds: [1, 2, 3]
scenarios: [slow-link, lossy-link]
workloads: [fashion-cnn]
contenders: [static, ppo]
static_sizes: [64, 128]
static_seeds: [1]
"""
SECONDS = {"static-64": 40.0, "static-128": 20.0, "ppo": 30.0}


def tables(folder: Path, cells: Iterable[CellResult]) -> Path:
    folder.mkdir()
    (folder / "grid.yaml").write_text(GRID)
    write_tables(folder, cells)
    return folder


def run(name: CellName, factor: float = 1.0) -> CellResult:
    return made_up(name.contender, factor * SECONDS[name.contender], seed=name.seed, scenario=name.scenario)


def cells_of_grid(folder: Path) -> list[CellName]:
    """Those that need to run, in their order; 64 samples lose the tuning."""
    (folder / "grid.yaml").write_text(GRID)
    return [cell for cell in load_grid(folder / "grid.yaml").cells() if cell.contender != "static-64" or cell.seed == 1]


def test_only_whole_seeds_count(tmp_path: Path) -> None:
    """Of an interrupted study, which has begun seed 3."""
    names = cells_of_grid(tmp_path)
    done = [run(name, factor=3.0 if name.seed == 3 else 1.0) for name in names[: names.index(names[-1]) - 1]]
    assert {cell.name.seed for cell in done} == {1, 2, 3}
    compared, costs = figures(tables(tmp_path / "now", done))
    assert "Complete: 2 of 3 seeds. Cells to come: 2.\n" in compared
    assert "| slow-link | 30.0 | 1.50 | n/a | n/a | +0.00 | 2 | one of two cores | 128 |" in compared
    assert [line.split(" | ")[0] for line in costs.strip().splitlines()[2:]] == ["| lossy-link", "| slow-link"]


def test_all_scenarios_are_summed_up(tmp_path: Path) -> None:
    names = cells_of_grid(tmp_path)
    compared, _ = figures(tables(tmp_path / "now", map(run, names)))
    assert "Complete: 3 of 3 seeds.\n" in compared
    assert "| **these 2** |  | 1.50 |" in compared


def test_what_the_time_goes_to() -> None:
    sizes = (PlanPoint(0.0, (64, 64)), PlanPoint(10.0, (128, 128)), PlanPoint(40.0, (512, 512)))
    ppo = replace(made_up("ppo", 20, samples_per_s=2000), sizes=sizes, wait_fraction=0.125)
    (race,) = with_static(races([made_up("static-64", 60, train_s=50), ppo]))
    assert list(where_time_goes("mine", race).values()) == [
        "mine", "never / 1,000", "n/a", "40,000 / 2,000", "n/a / 192", "25 / n/a / 12",
    ]  # fmt: skip


def test_a_seed_with_a_cell_that_failed_is_not_whole(tmp_path: Path) -> None:
    names = cells_of_grid(tmp_path)
    cells = [run(name) for name in names]
    cells[-1] = replace(cells[-1], ended="failed", curve=())
    compared, _ = figures(tables(tmp_path / "now", cells))
    assert "Complete: 2 of 3 seeds. Cells to come: 1.\n" in compared


def test_without_a_whole_seed_it_says_what_to_run(tmp_path: Path) -> None:
    folder = tables(tmp_path / "now", [run(cells_of_grid(tmp_path)[0])])
    with pytest.raises(UsageError, match=r"no seed is complete; `dynamix bench run network --out .*now` goes on"):
        figures(folder)
