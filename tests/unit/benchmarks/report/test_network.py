"""The page of the network scenarios compares whole seeds, says how many there are, and keeps the planes apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.report.network import figures
from benchmarks.suite.grid import load_grid
from benchmarks.suite.results import CellName, CellResult
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


@pytest.fixture
def before(tmp_path: Path) -> Path:
    """The other plane, where ppo is twice as slow and the smaller size wins."""
    scenarios = ("slow-link", "lossy-link", "spot")
    times = {"static-64": 40, "static-128": 48, "ppo": 20}
    cells = [
        made_up(who, s, scenario=where, seed=seed) for where in scenarios for who, s in times.items() for seed in (1, 2)
    ]
    return tables(tmp_path / "before", cells)


def cells_of_grid(folder: Path) -> list[CellName]:
    """Those that need to run, in their order; 64 samples lose the tuning."""
    (folder / "grid.yaml").write_text(GRID)
    return [cell for cell in load_grid(folder / "grid.yaml").cells() if cell.contender != "static-64" or cell.seed == 1]


def test_only_whole_seeds_count(tmp_path: Path, before: Path) -> None:
    """Of an interrupted study, which has begun seed 3."""
    names = cells_of_grid(tmp_path)
    done = [run(name, factor=3.0 if name.seed == 3 else 1.0) for name in names[: names.index(names[-1]) - 1]]
    assert {cell.name.seed for cell in done} == {1, 2, 3}
    compared, costs = figures(tables(tmp_path / "now", done), before)
    assert "Complete: 2 of 3 seeds. Cells to come: 2.\n" in compared
    assert "| slow-link | now | 30.0 | 1.50 | n/a | n/a | +0.00 | 2 | one of two cores | 128 |" in compared
    assert "| slow-link | before | 20.0 | 0.50 | n/a | n/a | +0.00 | 2 | one of two cores | 64 |" in compared
    assert [line.split(" | ")[:2] for line in costs.strip().splitlines()[2:]] == [
        [f"| {scenario}", plane] for scenario in ("lossy-link", "slow-link") for plane in ("now", "before")
    ]


def test_both_planes_are_summed_up_over_the_same_scenarios(tmp_path: Path, before: Path) -> None:
    names = cells_of_grid(tmp_path)
    compared, _ = figures(tables(tmp_path / "now", map(run, names)), before)
    assert "Complete: 3 of 3 seeds.\n" in compared
    assert "| **these 2** | now |  | 1.50 |" in compared and "| **these 2** | before |  | 0.50 |" in compared
    assert "spot" not in compared


def test_a_seed_with_a_cell_that_failed_is_not_whole(tmp_path: Path, before: Path) -> None:
    names = cells_of_grid(tmp_path)
    cells = [run(name) for name in names]
    cells[-1] = replace(cells[-1], ended="failed", curve=())
    compared, _ = figures(tables(tmp_path / "now", cells), before)
    assert "Complete: 2 of 3 seeds. Cells to come: 1.\n" in compared


def test_without_a_whole_seed_it_says_what_to_run(tmp_path: Path, before: Path) -> None:
    folder = tables(tmp_path / "now", [run(cells_of_grid(tmp_path)[0])])
    with pytest.raises(UsageError, match=r"no seed is complete; `dynamix bench run network --out .*now` goes on"):
        figures(folder, before)
