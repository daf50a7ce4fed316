"""The cost of the trailer: the job that is measured is one in which sizes are chosen."""

from __future__ import annotations

from benchmarks.parts.trailer import OF_WORKER, PARTS, Job, measure
from worker_hooks.exchange.trailer import length
from worker_hooks.planning.own_size import TOLD


def test_every_part_is_measured_and_the_bar_is_for_those_of_the_worker() -> None:
    row = measure(4, windows=2)
    assert row["workers"] == 4
    assert row["bytes"] == 4 * (length(4, 62) + 4 * TOLD)
    assert all(row[f"{part}_ms"] > 0 for part in PARTS)
    assert row["together_ms"] == sum(row[f"{part}_ms"] for part in OF_WORKER)
    assert abs(row["share"] - row["together_ms"] / 100) < 1e-12


def test_the_workers_choose_sizes_in_every_window() -> None:
    job = Job(3)
    for _ in range(3):
        job.window()
    assert job._plan.version >= 2
    fastest, slowest = job._speeds.argmax(), job._speeds.argmin()
    assert job._plan.batch_sizes[fastest] > job._plan.batch_sizes[slowest]
