"""Some seeds of a grid choose the best fixed size; the other seeds then run only that size."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.report.report import report_text
from benchmarks.suite.grid import Grid
from benchmarks.suite.grid_folder import GridFolder
from benchmarks.suite.overview import cells_table
from benchmarks.suite.results import CellName, write_result
from benchmarks.suite.tuning import beaten
from dynamix_ps.errors import ConfigError
from tests.unit.benchmarks.suite.made_up_cells import made_up
from tests.unit.benchmarks.suite.test_grid import grid_of

TEXT = """\
name: mine
seeds: [1, 2, 3]
scenarios: [homogeneous, h-level-4]
workloads: [fashion-cnn]
contenders: [static, ppo]
static_sizes: [64, 128]
static_seeds: [1]
"""
TRIED = [made_up("static-64", 30.0), made_up("static-128", 20.0)]


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return grid_of(tmp_path, TEXT)


def test_the_size_that_lost_does_not_run_with_other_seeds_in_that_scenario(grid: Grid) -> None:
    lost = beaten(grid, TRIED)
    assert lost == {CellName("h-level-4", "fashion-cnn", "static-64", seed) for seed in (2, 3)}


@pytest.mark.parametrize("results", [[], TRIED[:1], [TRIED[0], made_up("static-128", 20.0, ended="failed")]])
def test_nothing_is_decided_before_every_size_has_its_result(grid: Grid, results: list) -> None:
    assert beaten(grid, results) == set()


def test_later_seeds_do_not_change_what_was_tuned(grid: Grid) -> None:
    assert beaten(grid, [*TRIED, made_up("static-128", 90.0, seed=2)]) == beaten(grid, TRIED)


def test_with_all_seeds_for_tuning_all_sizes_run(tmp_path: Path) -> None:
    assert beaten(grid_of(tmp_path, TEXT.replace("[1]", "[1, 2, 3]")), TRIED) == set()
    assert beaten(grid_of(tmp_path, TEXT.replace("static_seeds: [1]\n", "")), TRIED) == set()


def test_the_tuned_size_is_the_one_that_went_on(grid: Grid) -> None:
    """Even if it does worse with the other seeds than the one that lost did with the first."""
    text = report_text([*TRIED, made_up("static-128", 45.0, seed=2), made_up("ppo", 10.0)], [])
    assert "`static` is `static-128` here" in text


def test_the_folder_knows_and_shows_what_need_not_run(grid: Grid, tmp_path: Path) -> None:
    folder = GridFolder(tmp_path / "out")
    folder.path.mkdir()
    folder.adopt(grid)
    for result in TRIED:
        write_result(folder.cells, result)
    assert folder.beaten(grid) == beaten(grid, TRIED)
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(cells_table(grid, folder))
    shown = " ".join(console.export_text().split())
    assert shown.count("lost the tuning") == 2
    assert "18 cells, 2 done, 14 to come" in shown


def test_seeds_for_tuning_must_be_the_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r":7: static_seeds\[0\]: must be among the first of the seeds \(got 2\)"):
        grid_of(tmp_path, TEXT.replace("static_seeds: [1]", "static_seeds: [2]"))
