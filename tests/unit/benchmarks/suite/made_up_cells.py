"""Made-up results of cells: accuracy grows linearly, and reaches 90 % at a given time."""

from __future__ import annotations

from benchmarks.suite.results import CellName, CellResult, CurvePoint, Ended, PlanPoint, WorkerTimes

TARGET = 0.9
HIGHEST = 0.99
LIMIT_S = 100.0
TRAIN_S = 50.0


def made_up(
    contender: str,
    arrives_s: float,
    *,
    seed: int = 1,
    scenario: str = "h-level-4",
    workload: str = "fashion-cnn",
    ended: Ended = "done",
    train_s: float = TRAIN_S,
    samples_per_s: int = 1000,
    epochs: int = 100,
) -> CellResult:
    """One evaluation every second; `arrives_s` beyond `train_s`: the target is missed."""
    times = range(1, int(train_s) + 1)
    curve = (
        CurvePoint(float(t), samples_per_s * t, t / 10, min(TARGET * t / arrives_s, HIGHEST), 1 / t) for t in times
    )
    return CellResult(
        name=CellName(scenario, workload, contender, seed),
        ended=ended,
        reason="" if ended == "done" else "worker 1 died, and `that` | is why",
        network="namespaces",
        emulation="CPU quotas",
        thresholds=(0.45, TARGET),
        limit_s=LIMIT_S,
        epochs=epochs,
        machine="one of two cores",
        machine_gflop_per_s=31.25,
        train_s=train_s,
        samples=int(samples_per_s * train_s),
        iterations=500,
        plans=3,
        wait_fraction=0.25,
        compute_spread=0.5,
        decision_p50_ms=0.4,
        decision_p99_ms=None,
        fallback_windows=0,
        windows=40,
        replayed=40,
        curve=() if ended == "failed" else tuple(curve),
        sizes=(PlanPoint(0.0, (64, 64)), PlanPoint(4.125, (32, 96))),
        workers=(WorkerTimes(0, 0.5, 0.2, 0.25, 0.01), WorkerTimes(1, 0.7, 0.2, 0.0, 0.01)),
    )
