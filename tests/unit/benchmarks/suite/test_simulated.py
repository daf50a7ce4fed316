"""Cells of the bed as a scenario of the simulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import benchmarks
from benchmarks.suite.results import CellResult, PlanPoint
from benchmarks.suite.scenario import load_scenario
from benchmarks.suite.simulated import CoreTimes, computing_times, core_times, iteration_s, simulated
from benchmarks.suite.tables import read_tables
from dynamix_ps.sim.cluster.cost import iteration_times
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.cluster.traces import Conditions
from tests.unit.benchmarks.suite.made_up_cells import made_up

CORES, FIXED_S, PER_SAMPLE_S = (0.5, 0.25), 0.01, 2e-4


def cell(size: int, gflop_per_s: float | None) -> CellResult:
    """Two uneven workers with this size each, on a machine that needs the times above at 100 GFLOP/s."""
    iteration_s = (FIXED_S + PER_SAMPLE_S * size) / min(CORES) * 100 / (gflop_per_s or 100)
    made = made_up(f"static-{size}", 30.0)
    curve = tuple(replace(point, samples=round(point.time_s / iteration_s * 2 * size)) for point in made.curve)
    return replace(made, curve=curve, sizes=(PlanPoint(0.0, (size, size)),), machine_gflop_per_s=gflop_per_s)


def test_times_of_a_core_do_not_depend_on_how_fast_the_machine_was_in_each_cell():
    cells = [cell(64, 150.0), cell(128, 100.0), cell(256, 80.0)]
    core = core_times(cells, {cells[0].name.scenario: CORES})
    assert core == pytest.approx((FIXED_S, PER_SAMPLE_S, 100.0), rel=1e-3)
    assert core.at(50.0) == pytest.approx((2 * FIXED_S, 2 * PER_SAMPLE_S, 50.0), rel=1e-3)


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ([cell(64, 100.0), cell(128, None)], "static-128.*speed of the machine is not known"),
        ([cell(64, 100.0), cell(64, 90.0)], "at least two sizes"),
    ],
)
def test_cells_that_do_not_tell_enough_are_refused(cells: list[CellResult], text: str):
    with pytest.raises(ValueError, match=text):
        core_times(cells, {cells[0].name.scenario: CORES})


NETWORK = Path(benchmarks.__file__).parent / "results" / "network"
GRADIENT_BYTES = 861_480.0  # of the CNN of these cells, in one bucket


def predicted_s(cell: CellResult, measured_s: float) -> float:
    """How long the cost model says an iteration takes, from the computing times that the workers measured."""
    cluster = simulated(load_scenario(cell.name.scenario), CoreTimes(0.0, 1e-9, 1.0), cell.limit_s)
    computing = zip(cluster.workers, cell.workers, strict=True)
    workers = tuple(worker.model_copy(update={"fixed_s": one.compute * measured_s}) for worker, one in computing)
    changes = {"workers": workers, "model_bytes": GRADIENT_BYTES, "overlap": 0.0, "jitter": 0.0}
    parameters = parameters_of((cluster.model_copy(update=changes),))
    calm, alike = Conditions(parameters, np.random.default_rng(0)), np.ones((1, len(workers)), dtype=np.float32)
    return float(iteration_times(parameters, calm, alike, np.zeros_like(alike)).iteration_s[0])


@pytest.mark.parametrize("scenario", ["slow-link", "server-ingress"])
def test_the_cost_model_comes_to_the_measured_iterations_of_every_cell_behind_narrow_links(scenario: str):
    """Among them those of `ppo`, in which the worker behind the slow link has a tenth of the others' computing."""
    found = {}
    for cell in read_tables(NETWORK):
        if cell.name.scenario == scenario and (cell.ended == "done" or not cell.plans):
            whole = cell.ended == "done" and cell.iterations
            measured_s = cell.curve[-1].time_s / cell.iterations if whole else iteration_s(cell)
            found[str(cell.name)] = predicted_s(cell, measured_s) / measured_s
    assert len(found) >= 9
    assert found == pytest.approx(dict.fromkeys(found, 1.0), abs=0.1)


def test_computing_alone_tells_the_times_of_a_core_where_links_are_limited():
    cells = [one for one in read_tables(NETWORK) if one.name.contender.startswith("static-")]
    core = [
        computing_times([cell for cell in cells if cell.name.scenario == name], load_scenario(name).cores)
        for name in ("slow-link", "server-ingress", "lossy-link")
    ]
    times_s = [one.at(90.0).per_sample_s for one in core]
    assert max(times_s) < 1.25 * min(times_s), "whatever the links, it is the same network on the same machine"
