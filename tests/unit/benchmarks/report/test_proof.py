"""The page of the proof names the results that miss their goal."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.report.proof import figures
from benchmarks.suite.results import CellResult, PlanPoint
from benchmarks.suite.statistics import races, with_static
from tests.unit.benchmarks.suite.made_up_cells import made_up

SECONDS = {
    "h-level-4": {"static-64": 40, "pid": 30, "goodput": 10, "ppo": 20},
    "spot": {"static-64": 40, "pid": 20, "goodput": 40, "ppo": 30},
    "homogeneous": {"static-64": 40, "pid": 40, "goodput": 40, "ppo": 44},
}


def blocks_of(cells: list[CellResult]) -> list[list[str]]:
    return [block.splitlines() for block in figures(with_static(races(cells)), "runs/mine")]


def lines_of(cells: list[CellResult]) -> list[str]:
    return blocks_of(cells)[0]


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


def test_what_the_time_goes_to() -> None:
    sizes = (PlanPoint(0.0, (64, 64)), PlanPoint(10.0, (128, 128)), PlanPoint(40.0, (512, 512)))
    ppo = replace(made_up("ppo", 20, samples_per_s=2000), sizes=sizes)
    cells = [made_up("static-64", 60, train_s=50), replace(ppo, wait_fraction=0.125)]
    _, costs, _ = blocks_of(cells)
    assert costs[0].startswith("| scenario | `static`: samples to 90 % / samples per s | `goodput`: the same |")
    assert "| global batch until then, of the latter two |" in costs[0]
    assert costs[2] == "| h-level-4 | never / 1,000 | n/a | 40,000 / 2,000 | n/a / 192 | 25 / n/a / 12 |"


def test_everybody_else_by_time_against_static() -> None:
    where = {"h-level-4": (40, 20, 30, 36), "homogeneous": (40, 40, 48, 30)}
    names = ("static-64", "ppo", "random", "lbb")
    cells = [made_up(name, s, scenario=at) for at, times in where.items() for name, s in zip(names, times, strict=True)]
    cells += [made_up(name, 40, scenario="homogeneous", seed=2) for name in ("static-64", "ppo", "lbb")]
    *_, others = blocks_of(cells)
    assert others[0] == (
        "| contender | t / t_static, these 1 | `ppo` over it, these 1 | t / t_static, other 1 | `ppo` over it, other 1 "
        "| faster than `ppo` in | seeds |"
    )
    assert others[2] == "| `random` | 0.75 | 0.67 | 1.20 | 0.83 | nowhere | 1 |"
    assert others[3] == "| `lbb` | 0.90 | 0.56 | 0.87 | 1.15 | `homogeneous` | 1 to 2 |"


def test_scenarios_count_together_only_with_all_of_them() -> None:
    cells = [made_up(name, 30, scenario=at) for at in ("h-level-4", "spot") for name in ("static-64", "ppo")]
    *_, others = blocks_of([*cells, made_up("lbb", 30, scenario="spot")])
    assert others[2] == "| `lbb` | n/a | n/a | nowhere | 0 to 1 |"


def test_scenarios_with_several_workloads_say_which() -> None:
    cells = [made_up(name, 20, workload=model) for model in ("cnn", "vgg") for name in ("static-64", "ppo")]
    titles = [line.split(" | ")[0] for line in lines_of(cells)]
    assert "| h-level-4, cnn" in titles and "| h-level-4, vgg" in titles
