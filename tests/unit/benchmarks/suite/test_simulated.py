"""Cells of the bed as a scenario of the simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.suite.results import CellResult, PlanPoint
from benchmarks.suite.simulated import core_times
from tests.unit.benchmarks.suite.made_up_cells import made_up

CORES, FIXED_S, PER_SAMPLE_S = 0.5, 0.01, 2e-4


def cell(size: int, gflop_per_s: float | None) -> CellResult:
    """Two equal workers with this size each, on a machine that needs the times above at 100 GFLOP/s."""
    iteration_s = (FIXED_S + PER_SAMPLE_S * size) / CORES * 100 / (gflop_per_s or 100)
    made = made_up(f"static-{size}", 30.0)
    curve = tuple(replace(point, samples=round(point.time_s / iteration_s * 2 * size)) for point in made.curve)
    return replace(made, curve=curve, sizes=(PlanPoint(0.0, (size, size)),), machine_gflop_per_s=gflop_per_s)


def test_times_of_a_core_do_not_depend_on_how_fast_the_machine_was_in_each_cell():
    core = core_times([cell(64, 150.0), cell(128, 100.0), cell(256, 80.0)], CORES, 2)
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
        core_times(cells, CORES, 2)
