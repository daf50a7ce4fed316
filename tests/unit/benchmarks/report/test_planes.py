"""One row per scenario and data plane, and the share of each part of the time."""

from __future__ import annotations

from benchmarks.report.planes import figures
from benchmarks.suite.statistics import races, with_static
from tests.unit.benchmarks.suite.made_up_cells import made_up


def test_planes_stand_side_by_side() -> None:
    times = {"fashion-cnn-short": (40, 10), "fashion-cnn-ring": (40, 20), "fashion-cnn-mxnet": (40, 30)}
    cells = [
        made_up(name, time_s, workload=workload)
        for workload, pair in times.items()
        for name, time_s in zip(("static-64", "ppo"), pair, strict=True)
    ]
    (block,) = figures(with_static(races(cells)), "runs/mine")
    lines = block.splitlines()
    gains = {"torch, byteps": "0.25", "torch, gloo": "0.50", "mxnet, byteps": "0.75"}
    for plane, gain in gains.items():
        (row,) = [line for line in lines if f"| h-level-4 | {plane} | 1 |" in line]
        assert f"| {gain} |" in row and "| 1,000 -> 1,000 |" in row
    assert "| h-level-4 | torch, gloo | `ppo` | 60 % | 20 % | 12 % | 1 % |" in lines
