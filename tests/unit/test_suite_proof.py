"""The page of the proof says where what was hoped for is missed."""

from __future__ import annotations

from benchmarks.suite.proof import figures
from benchmarks.suite.results import CellResult
from benchmarks.suite.statistics import races, with_static
from tests.unit.made_up_cells import made_up

SECONDS = {
    "h-level-4": {"static-64": 40, "pid": 30, "goodput": 10, "ppo": 20},
    "spot": {"static-64": 40, "pid": 20, "goodput": 40, "ppo": 30},
    "homogeneous": {"static-64": 40, "pid": 40, "goodput": 40, "ppo": 44},
}


def lines_of(cells: list[CellResult]) -> list[str]:
    return figures(with_static(races(cells)), "runs/mine").splitlines()


def test_a_line_per_scenario_and_what_is_missed() -> None:
    cells = [made_up(name, s, scenario=where) for where, times in SECONDS.items() for name, s in times.items()]
    lines = lines_of(cells)
    assert "| h-level-4 | 20.0 | 0.50 | 0.67 | 2.00 | +0.00 | 1 | one of two cores |" in lines
    assert "| homogeneous | 44.0 | 1.10 | 1.10 | 1.10 | +0.00 | 1 | one of two cores |" in lines
    summed = {line.split(" | ")[0]: line.split(" | ")[2] for line in lines if line.startswith("| **")}
    assert summed == {"| **these 2**": "0.61", "| **all 3**": "0.74"}
    order = [line.split()[1] for line in lines if line.startswith("| ")]
    assert order == ["scenario", "---", "h-level-4", "spot", "**these", "homogeneous", "**all"]
    assert lines[-2] == (
        "Of these 2, at most 0.54 of `static`: `h-level-4`. Slower than `static`: nowhere. Slower than `pid`: `spot`. "
        "Slower than `goodput`: `h-level-4`. Final accuracy more than 0.3 points below `static`: nowhere."
    )


def test_a_final_accuracy_that_is_too_low_is_named() -> None:
    cells = [made_up("static-64", 40), made_up("pid", 30), made_up("goodput", 30), made_up("ppo", 48)]
    assert "points below `static`: `h-level-4`." in lines_of(cells)[-2]


def test_without_a_demanding_scenario_there_is_nothing_to_miss() -> None:
    cells = [made_up(name, 20, scenario="homogeneous") for name in ("static-64", "pid", "goodput", "ppo")]
    assert "Of these" not in "".join(lines_of(cells))
