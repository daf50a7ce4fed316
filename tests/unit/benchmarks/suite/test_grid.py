"""Grids: the order of cells, what is refused, the folder of a grid, its progress."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.suite import grid_folder
from benchmarks.suite.contenders import CONTENDERS
from benchmarks.suite.grid import Grid, load_grid, shipped
from benchmarks.suite.grid_folder import GridFolder
from benchmarks.suite.overview import cells_table, outcome, shipped_tables
from benchmarks.suite.results import CellName, write_result
from benchmarks.suite.scenario import load_scenario
from benchmarks.suite.tables import export, read_tables, write_tables
from dynamix_ps.errors import ConfigError, UsageError
from tests.unit.benchmarks.suite.fake_cell import result
from tests.unit.benchmarks.suite.made_up_cells import made_up

GOOD = """\
name: mine
seeds: [1, 2, 3]
scenarios: [homogeneous, h-level-4]
workloads: [fashion-cnn]
contenders: [static, pid, goodput, ppo]
static_sizes: [64, 128]
"""


def grid_of(folder: Path, text: str = GOOD) -> Grid:
    file = folder / "mine.yaml"
    file.write_text(text)
    return load_grid(file)


def errors_of(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        grid_of(folder, text)
    return [line.removeprefix(f"{folder / 'mine.yaml'}:") for line in str(caught.value).splitlines()]


def test_a_folder_with_tables_alone_goes_on_from_them(tmp_path: Path) -> None:
    """What is committed is enough."""
    grid = grid_of(tmp_path)
    results = [made_up("pid", 20.0, seed=2), made_up("ppo", 10.0)]
    write_tables(tmp_path, results)
    folder = GridFolder(tmp_path)
    folder.adopt(grid)
    assert [folder.result(one.name) for one in results] == list(read_tables(tmp_path))
    before = {file.name: file.read_bytes() for file in tmp_path.glob("*.csv")}
    export(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.glob("*.csv")} == before


def test_every_combination_runs_once_and_static_once_per_size(tmp_path: Path) -> None:
    cells = grid_of(tmp_path).cells()
    assert len(cells) == len(set(cells)) == 3 * 2 * 1 * 5
    assert {cell.contender for cell in cells} == {"static-64", "static-128", "pid", "goodput", "ppo"}


def test_static_is_tried_with_every_learning_rate(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, GOOD + "static_lr_factors: [1.0, 2.0, 0.5]\n")
    static = [name for name in grid.single_contenders if name.startswith("static")]
    assert static == [f"static-{size}{rate}" for rate in ("", "-x2", "-x0.5") for size in (64, 128)]


def test_contenders_run_side_by_side_and_take_turns_in_beginning(tmp_path: Path) -> None:
    cells = grid_of(tmp_path).cells()
    blocks = [cells[first : first + 5] for first in range(0, len(cells), 5)]
    assert all(len({(cell.seed, cell.scenario, cell.workload) for cell in block}) == 1 for block in blocks)
    assert [block[0].seed for block in blocks] == [1, 1, 2, 2, 3, 3]
    assert len({block[0].contender for block in blocks}) == 3
    places = [[cell.contender for cell in block].index("ppo") for block in blocks[::2]]
    assert max(places) - min(places) >= 2  # neither always early nor always late


def test_the_seeds_of_the_network_grid_complete_one_after_the_other() -> None:
    grid = load_grid("network")
    seeds = [cell.seed for cell in grid.cells()]
    assert seeds == sorted(seeds) and set(seeds) == {1, 2, 3}
    assert {load_scenario(name).needs_namespaces for name in grid.scenarios} == {True}
    assert grid.tuning_seeds == (1,), "sizes that lose run with every seed"


SIDE = GOOD + "side_contenders: [pid]\nside_seeds: [1]\n"


def test_side_contenders_run_with_their_seeds_alone(tmp_path: Path) -> None:
    cells = grid_of(tmp_path, SIDE).cells()
    assert {cell.seed for cell in cells if cell.contender == "pid"} == {1}
    assert {cell.seed for cell in cells if cell.contender == "ppo"} == {1, 2, 3}
    assert set(cells) < set(grid_of(tmp_path).cells())
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)


def test_names_that_do_not_exist_are_refused_where_they_stand(tmp_path: Path) -> None:
    text = GOOD.replace("h-level-4", "h-levle-4").replace("goodput", "goodptu").replace("fashion-cnn", "fashion")
    errors = errors_of(tmp_path, text)
    assert ["".join(error.split(" ")[:2]) for error in errors] == [
        "3:scenarios[1]:",
        "4:workloads[0]:",
        "5:contenders[2]:",
    ]
    assert "h-level-4" in errors[0]
    assert "did you mean 'goodput'" in errors[2]


@pytest.mark.parametrize(
    ("workload", "why"), [("fashion-cnn-mxnet", "is of mxnet"), ("fashion-cnn-averaged", "averages weights")]
)
def test_what_ddp_cannot_train_is_refused_with_its_contenders_alone(tmp_path: Path, workload: str, why: str) -> None:
    text = GOOD.replace("[fashion-cnn]", f"[{workload}]")
    grid_of(tmp_path, text)
    (error,) = errors_of(tmp_path, text.replace("pid", "ddp, ddp-by-hand"))
    assert error.startswith(f"4: workloads[0]: {why}, which ddp and ddp-by-hand cannot train")


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("[1, 2, 3]", "[1, 2, 1]", "2: seeds[2]: is in the list twice (got 1)"),
        ("[1, 2, 3]", "[]", "2: seeds: must have at least 1 item(s) (got a list)"),
        ("[1, 2, 3]", "[-1]", "2: seeds[0]: must be at least 0 (got -1)"),
        ("name: mine", "name: my/grid", "1: name: must match"),
        ("static_sizes", "static_size", "6: static_size: unknown key; did you mean 'static_sizes'?"),
        ("[64, 128]", "[]", "6: static_sizes: there must be sizes to tune `static` by if, and only if"),
        ("[static, pid", "[pid", "6: static_sizes: there must be sizes to tune `static` by if, and only if"),
        ("[64, 128]", "[64, 1000000]", "6: static_sizes[1]: must lie within"),
        ("side_seeds: [1]", "", "7: side_contenders: side contenders need side seeds, and these need those"),
        ("side_contenders: [pid]\n", "", "7: side_seeds: side contenders need side seeds, and these need those"),
        ("side_seeds: [1]", "side_seeds: [1, 4]", "8: side_seeds[1]: must be among the seeds (got 4)"),
        ("side_seeds: [1]", "side_seeds: [1, 1]", "8: side_seeds[1]: is in the list twice (got 1)"),
        (
            "_contenders: [pid]",
            "_contenders: [lbb]",
            "7: side_contenders[0]: must be one of the contenders, and not `static` (got lbb)",
        ),
        (
            "_contenders: [pid]",
            "_contenders: [static]",
            "7: side_contenders[0]: must be one of the contenders, and not `static`",
        ),
    ],
)
def test_what_cannot_run_is_refused(tmp_path: Path, old: str, new: str, error: str) -> None:
    assert old in SIDE
    assert any(line.startswith(error) for line in errors_of(tmp_path, SIDE.replace(old, new)))


def test_a_grid_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file; grids that ship: .*quick"):
        load_grid(tmp_path / "none.yaml")


def test_grids_that_ship_can_run_and_name_themselves() -> None:
    assert {"quick", "full"} <= set(shipped())
    for name in shipped():
        grid = load_grid(name)
        assert grid.name == name
        assert grid.about
    for name in ("quick", "full"):
        assert set(load_grid(name).contenders) == set(CONTENDERS)
    assert set(load_grid("proof").cells()) < set(load_grid("full").cells()), "its folder cannot grow"


def test_a_folder_belongs_to_one_grid_which_may_grow(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    folder = GridFolder(tmp_path / "out")
    with folder.held(lambda: None):
        folder.adopt(grid)
        assert folder.grid() == grid
        grown = grid_of(tmp_path, GOOD.replace("[1, 2, 3]", "[1, 2, 3, 4]"))
        folder.adopt(grown)
        assert folder.grid() == grown
        with pytest.raises(UsageError, match=r"holds a grid of which 10 cells are not in this one.*--out"):
            folder.adopt(grid)
        assert folder.grid() == grown


def test_nobody_else_works_in_a_folder_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_folder, "_PATIENCE_S", 0.0)
    waits: list[int] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(GridFolder(tmp_path).held(lambda: waits.append(1)))
        with pytest.raises(UsageError, match="another `dynamix bench run` works here"):
            stack.enter_context(GridFolder(tmp_path).held(lambda: waits.append(2)))
    assert waits == [2]
    with GridFolder(tmp_path).held(lambda: waits.append(3)):
        assert waits == [2]


def test_a_damaged_result_is_named(tmp_path: Path) -> None:
    folder = GridFolder(tmp_path)
    cell = CellName("calm", "small", "pid", 1)
    folder.cells.mkdir()
    folder.result_file(cell).write_text("{}")
    with pytest.raises(UsageError, match=rf"{cell}\.json: not the result of a cell.*delete it"):
        folder.result(cell)


def test_how_far_a_grid_has_come(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    folder = GridFolder(tmp_path / "out")
    with folder.held(lambda: None):
        folder.adopt(grid)
    for contender, ended in (("pid", "done"), ("ppo", "failed"), ("goodput", "timed out")):
        write_result(folder.cells, result(CellName("h-level-4", "fashion-cnn", contender, 2), ended))  # type: ignore[arg-type]
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(cells_table(grid, folder))
    text = console.export_text()
    assert "30 cells, 1 done, 1 timed out, 1 failed, 27 to come" in " ".join(text.split())
    (pid,) = (line for line in text.splitlines() if "h-level-4" in line and "pid" in line)
    assert [cell.strip() for cell in pid.strip("│ ").split("│")][3:] == ["-", "80 % after 12.0 s", "-"]


def test_a_seed_that_a_contender_does_not_run_with_stays_empty(tmp_path: Path) -> None:
    folder = GridFolder(tmp_path / "out")
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(cells_table(grid_of(tmp_path, SIDE), folder))
    (pid,) = (line for line in console.export_text().splitlines() if "h-level-4" in line and "pid" in line)
    assert [cell.strip() for cell in pid.split("│")[4:-1]] == ["-", "", ""]


def test_an_outcome_says_whether_the_target_was_reached() -> None:
    cell = CellName("calm", "small", "pid", 1)
    assert outcome(result(cell)) == "80 % after 12.0 s"
    assert outcome(result(cell, "timed out")) == "timed out"


def test_everything_that_ships_is_listed() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    for table in shipped_tables():
        console.print(table)
    text = console.export_text()
    assert all(name in text for name in (*shipped(), *CONTENDERS, "h-level-10", "fashion-cnn"))
