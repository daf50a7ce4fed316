"""Makes the result of a cell from its run folder, or from what a training over DDP has told."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.suite.ddp_job import DdpRecord
from benchmarks.suite.machine_speed import machine_name
from benchmarks.suite.results import (
    CellName,
    CellResult,
    CurvePoint,
    Ended,
    PlanPoint,
    WorkerTimes,
    without_run,
)
from benchmarks.suite.workloads import Workload
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import DIVERGED
from dynamix_ps.policy.registry import make_policy, policy_rng
from dynamix_ps.report.plots.history import read_history
from dynamix_ps.run_record.evaluations import ACCURACY, AVERAGED, evaluation_of
from dynamix_ps.run_record.json_lines import JsonLinesTail
from dynamix_ps.run_record.model import TIME_PARTS
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.sim.recorded import RecordedRun, read_run
from dynamix_ps.sim.replay import replay


def measured(
    name: CellName, folder: RunFolder, config: Config, workload: Workload, network: str, machine_gflop_per_s: float
) -> CellResult:
    """The result of the cell. Raises OSError or UsageError where the run folder lacks what every run has."""
    summary: dict[str, Any] = json.loads(folder.summary_json.read_text(encoding="utf-8"))
    run = read_run(folder.path)
    ended: Ended = "done" if summary["exit_code"] == 0 else "timed out"
    decisions_ms = [line["decision_ms"] for line in JsonLinesTail(folder.journal_file).read() if "decision_ms" in line]
    waits = [wait for wait in summary["wait_fraction"] if wait is not None]
    return CellResult(
        name=name,
        ended=ended,
        reason="" if ended == "done" else str(summary["reason"]),
        network=network,
        emulation=summary["heterogeneity"],
        thresholds=workload.thresholds,
        limit_s=workload.limit_s,
        epochs=workload.epochs,
        machine=machine_name(),
        machine_gflop_per_s=_rounded(machine_gflop_per_s),
        train_s=summary["train_s"],
        samples=summary["samples"],
        iterations=summary["iterations"],
        plans=summary["plans_applied"],
        wait_fraction=_rounded(np.mean(waits)) if waits else None,
        compute_spread=_spread(run),
        decision_p50_ms=_percentile(decisions_ms, 50),
        decision_p99_ms=_percentile(decisions_ms, 99),
        fallback_windows=summary["safety_net"]["windows"],
        windows=len(run.decided),
        replayed=_replayed(run),
        curve=_curve(folder, workload),
        sizes=_sizes(folder, config),
        workers=tuple(
            WorkerTimes(row["rank"], *(_rounded(row[f"{part}_fraction"] or 0.0) for part in TIME_PARTS))
            for row in summary["per_worker"]
        ),
        metric=workload.metric,
    )


def over_ddp(
    name: CellName, told: DdpRecord, config: Config, workload: Workload, network: str, machine_gflop_per_s: float
) -> CellResult:
    """The result of a cell whose training was over DDP. What only our hook knows is not known."""
    if told.diverged:
        return without_run(name, "diverged", told.diverged, workload)
    last = told.end or (told.evaluations[-1] if told.evaluations else {})
    return dataclasses.replace(
        without_run(name, "timed out" if told.out_of_time else "done", told.out_of_time, workload),
        network=network,
        emulation=told.emulation,
        machine=machine_name(),
        machine_gflop_per_s=_rounded(machine_gflop_per_s),
        train_s=last.get("train_s"),
        samples=last.get("trained_samples", 0),
        iterations=last.get("iterations", 0),
        curve=_curve_of([(line, line["values"]) for line in told.evaluations], workload),
        sizes=(PlanPoint(0.0, config.initial_sizes()),),
    )


def divergence(run: Path) -> str:
    """Whose loss became infinite and when, from the summary of a run; empty where none did or no summary is there."""
    summary = run / "summary.json"
    reason: str = json.loads(summary.read_text(encoding="utf-8"))["reason"] if summary.exists() else ""
    return reason if DIVERGED in reason else ""


def _curve(folder: RunFolder, workload: Workload) -> tuple[CurvePoint, ...]:
    lines = [line for line in JsonLinesTail(folder.worker_file(0)).read() if line["kind"] == "evaluation"]
    return _curve_of([(line, evaluation_of(line, 0.0).values) for line in lines], workload)


def _curve_of(
    points: Iterable[tuple[Mapping[str, Any], Mapping[str, float]]], workload: Workload
) -> tuple[CurvePoint, ...]:
    """Of evaluations: what was trained before, and the values."""
    label = "" if workload.ema_decay is None else AVERAGED
    accuracy, loss = f"{label}{ACCURACY}", f"{label}loss"
    return tuple(
        CurvePoint(
            time_s=round(line["trained_s"], 3),
            samples=line["trained_samples"],
            epoch=_rounded(line["trained_samples"] / workload.train_samples),
            accuracy=values[accuracy],
            loss=found if math.isfinite(found := values.get(loss, math.nan)) else None,
        )
        for line, values in points
        if not math.isnan(values.get(accuracy, math.nan))
    )


def _sizes(folder: RunFolder, config: Config) -> tuple[PlanPoint, ...]:
    """Batch sizes in force over time, by the clocks of the workers."""
    history = read_history(folder, config)
    changes = sorted(
        (moment_s, rank, size)
        for rank, worker in history.workers.items()
        for moment_s, size in zip(worker.batch_s, worker.batch_sizes, strict=True)
    )
    now = list(config.initial_sizes())
    points = [PlanPoint(0.0, tuple(now))]
    for moment_s, rank, size in changes:
        if now[rank] != size:
            now[rank] = size
            points.append(PlanPoint(round(moment_s, 3), tuple(now)))
    return tuple(_settled(points))


def _settled(points: Iterable[PlanPoint], within_s: float = 0.5) -> Iterable[PlanPoint]:
    """One point per switch: the last of those that follow each other within `within_s`."""
    last: PlanPoint | None = None
    for point in points:
        if last is not None and point.time_s - last.time_s > within_s:
            yield last
        last = point
    if last is not None:
        yield last


def _spread(run: RecordedRun) -> float | None:
    """Median over windows of (slowest - fastest) / mean of the workers' computing times."""
    spreads = []
    for view in run.complete:
        times_s = np.array([record.compute_s for record in view.reported])
        if times_s.mean() > 0:
            spreads.append(float(np.ptp(times_s) / times_s.mean()))
    return _rounded(np.median(spreads)) if spreads else None


def _replayed(run: RecordedRun) -> int:
    policy = make_policy(run.config, run.n_workers, policy_rng(run.config))
    return sum(answer.other == answer.recorded for answer in replay(run, policy))


def _percentile(values: list[float], share: float) -> float | None:
    return _rounded(np.percentile(values, share)) if values else None


def _rounded(value: float | np.floating[Any]) -> float:
    return round(float(value), 4)
