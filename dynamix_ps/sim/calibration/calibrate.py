"""From recorded runs to a scenario of their cluster and their training: `dynamix sim calibrate`. Pure.

The runs give some values directly: sizes, bounds, k, bytes, latencies, samples of an epoch. fit_cost.py fits the times
of computing and network, fit_training.py fits loss and accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynamix_ps.config.role_hosts import role_hosts
from dynamix_ps.errors import UsageError
from dynamix_ps.messages import WindowRecord
from dynamix_ps.sim.calibration.fit_cost import fit_cost, predict_times
from dynamix_ps.sim.calibration.fit_training import fit_training
from dynamix_ps.sim.calibration.series import Series
from dynamix_ps.sim.recorded import RecordedRun
from dynamix_ps.sim.scenario.load import Scenario
from dynamix_ps.sim.scenario.parts import Bounds, Servers, SimulatedWorker, TrainingModel

NEARLY = 0.98  # the target is this part of the lowest best accuracy of all runs, if none is configured


def calibrate(scenario: Scenario, runs: Sequence[Series]) -> Scenario:
    """The scenario with workers, links and training as in these runs of its cluster."""
    return fit_training(calibrate_times(scenario, runs), runs)


def calibrate_times(scenario: Scenario, runs: Sequence[Series]) -> Scenario:
    """The scenario with workers and links as in these runs of its cluster."""
    return _with_warm_up(fit_cost(scenario, runs), runs)


def scenario_of(name: str, runs: Sequence[RecordedRun], series: Sequence[Series]) -> Scenario:
    """What the runs give without a fit. The initial sizes, to which `tuning` refers, are those of the first run.

    Raises:
        UsageError: the runs differ in their cluster, or in a learning rate that the simulator cannot convert.
    """
    cluster = cluster_of(name, runs)
    training = TrainingModel(data_samples=_data_samples(runs[0]), best_accuracy=1.0)
    reached = [float(run.test_accuracy.max(initial=0)) for run in series]
    target = runs[0].config.target_accuracy or NEARLY * min(reached)
    if not training.chance < target <= max(reached):
        raise UsageError(
            f"target accuracy {target:.3g}: the runs reached {max(reached):.3g} at best, expected one of them to reach "
            "it; evaluate more often, train longer, or configure a lower target_accuracy"
        )
    return cluster.model_copy(update={"training": training, "target_accuracy": target})


def cluster_of(name: str, runs: Sequence[RecordedRun]) -> Scenario:
    """The same without the training, which is that of a scenario that does not tell it.

    Raises UsageError if the runs differ in their cluster, or in a learning rate that the simulator cannot convert.
    """
    first = runs[0]
    for run in runs[1:]:
        _check_alike(first, run)
    for run in runs:
        _check_rate(run)
    config, ranks = first.config, range(first.n_workers)
    records = [record for run in runs for view in run.complete for record in view.reported]
    bounds = [config.bounds(rank) for rank in ranks]
    initial = first.decided[0].view.plan.batch_sizes
    cores = _cores(records)
    return Scenario(
        name=name,
        about=f"Calibrated with {', '.join(run.name for run in runs)}.",
        workers=tuple(
            SimulatedWorker(
                latency_s=_latency_s(records, rank), initial=initial[rank], quota=_quota(records, rank, cores)
            )
            for rank in ranks
        ),
        servers=Servers(count=len(role_hosts(config.cluster).servers)),
        model_bytes=float(records[0].bytes_pushed / records[0].iterations),
        cores=cores,
        sees_network=any(record.network_source != "none" for record in records),
        batch=Bounds(min=min(low for low, _ in bounds), max=max(high for _, high in bounds)),
        window=config.window,
        lr_rule=config.lr_rule,
    )


def _with_warm_up(scenario: Scenario, runs: Sequence[Series]) -> Scenario:
    """The scenario with `warm_up`: how much longer the first windows took than the fit predicts."""
    longer = [run.iteration_s[0] / predict_times(scenario, run.sizes[:1]).iteration_s[0] for run in runs]
    return scenario.model_copy(update={"warm_up": max(float(np.median(longer)), 1.0)})


def _check_alike(first: RecordedRun, run: RecordedRun) -> None:
    def totals(one: RecordedRun) -> int:
        return sum(one.decided[0].view.plan.batch_sizes) if one.config.lr_rule != "none" else 0

    for what, of_first, of_run in (
        ("workers", first.n_workers, run.n_workers),
        ("window", first.config.window, run.config.window),
        ("lr_rule", first.config.lr_rule, run.config.lr_rule),
        ("initial global batch (lr_rule counts from it)", totals(first), totals(run)),
    ):
        if of_first != of_run:
            raise UsageError(
                f"{run.name}: {what}: got {of_run}, expected {of_first} as in {first.name}; "
                "calibrate with runs of one cluster and one training"
            )


def _check_rate(run: RecordedRun) -> None:
    """Raises UsageError if another factor than `lr_rule`'s was on the learning rate, which the simulator has not."""
    left = {record.lr_guard for view in run.complete for record in view.reported}
    if other := sorted(factor for factor in left if abs(factor - 1) > 0):
        raise UsageError(
            f"{run.name}: factor of the guard on the learning rate: got {other[0]:g}, expected 1 in all windows; "
            "calibrate with runs that have `lr: script` or `lr: follow`"
        )


def _latency_s(records: Sequence[WindowRecord], rank: int) -> float:
    """Median of the known round trip times."""
    known = [record.rtt_s for record in records if record.rank == rank and record.rtt_s > 0]
    return float(np.median(known)) if known else SimulatedWorker().latency_s


def _cores(records: Sequence[WindowRecord]) -> float:
    """Cores that the fastest worker keeps busy while it computes."""
    ranks = {record.rank for record in records}
    busy = {rank: [r.cpu_ratio * r.duration_s / r.compute_s for r in records if r.rank == rank] for rank in ranks}
    known = [float(np.median(values)) for values in busy.values() if np.isfinite(values).all()]
    return max(known) if known else Scenario.model_fields["cores"].default


def _quota(records: Sequence[WindowRecord], rank: int, cores: float) -> float:
    """CPU time that a worker may use over the CPU time it wants while it computes; at most 1."""
    usable = float(np.median([record.cpu_cores for record in records if record.rank == rank]))
    return min(usable / cores, 1.0) if usable > 0 else 1.0


def _data_samples(run: RecordedRun) -> float:
    """Samples of one pass over the data, from the progress of epochs."""
    views = list(run.complete)
    ends = [(view.reported[0].epoch, view.reported[0]) for view in views if view.reported[0].epoch > 0]
    if not ends:
        return TrainingModel().data_samples
    epoch, last = ends[-1]
    trained = last.first_iteration + last.iterations
    per_iteration = np.mean([view.reported[0].global_samples / view.reported[0].iterations for view in views])
    return float(trained * per_iteration / epoch)
