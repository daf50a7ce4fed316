"""The cluster file of a cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.suite.cell import config_of
from benchmarks.suite.contenders import contender
from benchmarks.suite.placement import Scheduled
from benchmarks.suite.results import CellName
from benchmarks.suite.scenario import load_scenario
from benchmarks.suite.workloads import load_workload
from dynamix_ps.config.rules import findings


@pytest.mark.parametrize(
    ("name", "by_speed"), [("static", False), ("ppo", False), ("ddp", False), ("by-hand", True), ("ddp-by-hand", True)]
)
def test_only_sizes_by_hand_begin_in_proportion_to_the_speeds(name: str, by_speed: bool, tmp_path: Path) -> None:
    scenario, workload = load_scenario("h-level-4"), load_workload("fashion-cnn-short")
    placement = Scheduled(scenario, workload.limit_s)
    cell = CellName(scenario.name, "fashion-cnn-short", name, 1)
    config = config_of(cell, scenario, workload, contender(name), tmp_path, placement)
    assert not list(findings(config))
    total, sizes = len(scenario.cores) * workload.batch, config.initial_sizes()
    shares = [total * cores / sum(scenario.cores) for cores in scenario.cores]
    assert sizes == tuple(map(round, shares)) if by_speed else sizes == (workload.batch,) * len(scenario.cores)
    assert sum(sizes) == total
