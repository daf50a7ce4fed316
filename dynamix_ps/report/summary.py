"""The result of a run in figures: summary.json, and summary.md for people. Written after a failure as well."""

from __future__ import annotations

import dataclasses
import heapq
import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamix_ps.config.schema import Config
from dynamix_ps.report.fewer_bytes import fewer_bytes_text, wire_text
from dynamix_ps.report.gain import Gain, gain_of, gain_text, progress_text
from dynamix_ps.report.resume import checkpoint_fields, resumed_fields
from dynamix_ps.report.summary_text import markdown
from dynamix_ps.run_record.evaluations import ACCURACY, MetricCurve, curves
from dynamix_ps.run_record.json_lines import UNUSABLE, JsonLinesTail, Line
from dynamix_ps.run_record.model import TIME_PARTS, WorkerState
from dynamix_ps.run_record.role_files import RoleFiles, RoleLine
from dynamix_ps.run_record.run_folder import RunFolder
from dynamix_ps.run_record.run_state import RunState
from dynamix_ps.run_record.values import known_sum, number


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the run ended. `heterogeneity` says how different speeds were emulated."""

    exit_code: int | None  # of the launcher; None: the run has not ended, or nobody saw how
    reason: str
    heterogeneity: str
    degraded: tuple[str, ...] = ()


def write_summary(folder: RunFolder, config: Config, outcome: Outcome) -> dict[str, Any]:
    """Read the run folder again, write summary.json and summary.md, and return what summary.json holds."""
    summary = summary_of(folder, read_told(folder), config, outcome)
    folder.summary_json.write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    plots = sorted(path.relative_to(folder.path).as_posix() for path in folder.plots_dir.glob("*.png"))
    folder.summary_md.write_text(markdown(summary, plots), encoding="utf-8")
    return summary


def summary_of(folder: RunFolder, told: Sequence[RoleLine], config: Config, outcome: Outcome) -> dict[str, Any]:
    """What summary.json of the folder is to hold, by the lines that are there; what is not known is null."""
    state = state_of(told, len(config.cluster.workers), config.later)
    summary = summarise(folder.path.name, state, _gain(told, config), config, outcome)
    return summary | checkpoint_fields(folder, state)


def read_told(folder: RunFolder) -> list[RoleLine]:
    """All lines of the run, from the roles' own files and the launcher's events, in order of time."""
    streams: dict[Path, list[RoleLine]] = {}
    for told in RoleFiles(folder).read():
        streams.setdefault(told.file, []).append(told)
    own = (
        RoleLine(str(line.get("source")), folder.events_file, line) for line in JsonLinesTail(folder.events_file).read()
    )
    streams[folder.events_file] = [told for told in own if told.source == "launcher"]
    return list(heapq.merge(*streams.values(), key=lambda told: number(told.line.get("time_s", 0.0))))


def state_of(told: Iterable[RoleLine], n_workers: int, later: Collection[int] = ()) -> RunState:
    """The state at the end of these lines. `later`: workers that are not there when the job begins."""
    state = RunState(n_workers, later=later)
    for source, _, line in told:
        try:
            state.apply(source, line)
        except UNUSABLE:
            continue  # the recorder has put it into events.jsonl as unreadable_line
    return state


def _gain(told: Iterable[RoleLine], config: Config) -> Gain:
    windows = [line for source, _, line in told if line["kind"] == "window" and source.startswith("worker-")]
    first = config.initial_sizes()[: config.first_workers] if config.policy.remember else ()
    try:
        return gain_of(windows, config.first_workers, config.mode, config.lr_rule, first)
    except UNUSABLE as error:
        return Gain(None, None, f"a window line is damaged ({type(error).__name__}: {error})")


def summarise(run: str, state: RunState, gain: Gain, config: Config, outcome: Outcome) -> dict[str, Any]:
    """The figures of one run. Times are seconds since rank 0 began to train, unless named otherwise."""
    arbitrator, progress = state.arbitrator, state.progress
    workers = [state.workers[rank] for rank in sorted(state.workers)]
    train_s = _train_s(workers)
    samples = sum(worker.samples for worker in workers)
    metrics = curves(progress.evaluations)
    accuracy = metrics.get(ACCURACY)
    applied = arbitrator.applied_plans()
    initial = dict(enumerate(config.initial_sizes()))
    start = [initial.get(w.rank) if w.first_batch_size is None else w.first_batch_size for w in workers]
    return {
        "run": run,
        "exit_code": outcome.exit_code,
        "reason": outcome.reason,
        "comm": _first(worker.comm for worker in workers) or config.comm,
        "comm_version": _first(worker.comm_version for worker in workers),
        "workers": len(workers),
        "policy": config.policy.name,
        "mode": config.mode,
        "seed": config.seed,
        "iterations": state.workers.iteration,
        "trained_ratio": _known(progress.trained_ratio),
        "time_to_go_s": _known(progress.time_to_go_s),
        "samples": samples,
        "train_s": _known(train_s),
        "samples_per_s": _known(samples / train_s) if train_s else None,
        "units_per_s": _known(sum(w.means["units_per_s"].value for w in workers if w.windows)) or None,
        "counted": config.batch.counted,
        "gain": _gain_fields(gain, config.batch.counted),
        "fewer_bytes": fewer_bytes_text(state, config),
        "wire": wire_text(state, config),
        "plans_published": len(arbitrator.plans),
        "plans_applied": len(applied),
        "plans_observed": len(arbitrator.observed),
        "safety_net": {"times": arbitrator.fallbacks, "windows": arbitrator.fallback_windows},
        "learning_rate": {
            "lr": config.lr,
            "guard": _known(progress.lr_guard),
            "rollbacks": progress.rollbacks,
        },
        "batch_sizes_start": start,
        "batch_sizes_end": list(applied[-1].batch_sizes) if applied else start,
        "final_accuracy": _known(accuracy.last) if accuracy else None,
        "target_accuracy": config.target_accuracy,
        "time_to_accuracy_s": _time_to_accuracy(accuracy, config.target_accuracy),
        "metrics": {
            name: {
                "higher_is_better": curve.higher_is_better,
                "last": _known(curve.last),
                "best": _known(curve.best),
            }
            for name, curve in metrics.items()
        },
        "evaluations": [
            {
                "iteration": point.iteration,
                "epoch": point.epoch,
                "time_s": round(point.elapsed_s, 3),
                "values": {name: _known(value) for name, value in point.values.items()},
            }
            for point in progress.evaluations
        ],
        "wait_fraction": [_known(worker.fraction("wait")) for worker in workers],
        "noise_scale": _known(progress.noise.value.scale),
        "within_one_host": state.traffic.within_one_host,
        "compiled_graphs": [worker.graphs for worker in workers],
        "compiled_graphs_later": [worker.later_graphs for worker in workers],
        "per_worker": [_worker_row(worker, config) | _measured(worker, state) for worker in workers],
        "restart": state.restart,
        "resumed": resumed_fields(state),
        "losses": [*map(str, state.membership.found), *state.membership.schedulers],
        "departures": list(map(str, state.membership.departures)),
        "arrivals": list(map(str, state.membership.arrivals)),
        "heterogeneity": outcome.heterogeneity,
        "degraded": _degraded(state, outcome),
    }


def _gain_fields(gain: Gain, counted: str) -> dict[str, Any]:
    sides = {"first": gain.first, "last": gain.last}
    fields = {
        "text": gain_text(gain, counted),
        "progress": progress_text(gain, counted),
        "samples_per_s_ratio": _known(gain.ratio),
        "progress_per_sample_ratio": _known(gain.progress_per_sample) if gain.batch_changed else None,
    }
    return fields | {name: None if side is None else _rounded(dataclasses.asdict(side)) for name, side in sides.items()}


def _rounded(fields: Line) -> dict[str, Any]:
    return {
        name: [_known(item) for item in value] if isinstance(value, tuple) else _known(value)
        for name, value in fields.items()
    }


def _worker_row(worker: WorkerState, config: Config) -> dict[str, Any]:
    duration = worker.totals.get("duration", 0.0)
    planned = config.cluster.workers[worker.rank] if worker.rank < len(config.cluster.workers) else None
    return {
        "rank": worker.rank,
        "host": worker.host or (planned and planned.host),
        "state": worker.phase,
        "error": worker.error,
        "speed": planned and planned.speed,
        "iterations": worker.iteration,
        "samples": worker.samples,
        "samples_per_s": _known(worker.samples / (worker.train_s or duration)) if worker.train_s or duration else None,
        "batch_size_start": worker.first_batch_size,
        "batch_size_end": worker.batch_size,
        **{f"{part}_fraction": _known(worker.fraction(part)) for part in TIME_PARTS},
    }


def _measured(worker: WorkerState, state: RunState) -> dict[str, Any]:
    """What was measured beside training. Totals are of all connections the roles reported, means over all windows.

    summed_bytes_per_s: gradient bytes that were summed.
    network_source: source of most windows. pushed_bytes, pulled_bytes: payload to and from the servers.
    retransmits: segments sent again, by the worker and by the servers to it. mean_rtt_s: smoothed round trip.
    cpu_fraction: of the cores it may use. throttled_fraction: time in which a CPU quota held it back.
    """
    traffic = state.traffic.of_worker(worker.rank)
    means = {name: mean.value for name, mean in worker.means.items()}
    return {
        "summed_bytes_per_s": _known(means.get("summed_bytes_per_s")),
        "network_source": worker.sources.most_common(1)[0][0] if worker.sources else None,
        "pushed_bytes": _count(traffic.pushed_bytes),
        "pulled_bytes": _count(traffic.pulled_bytes),
        "retransmits": _count(known_sum((traffic.push_retransmits, traffic.pull_retransmits))),
        "mean_rtt_s": _known(means.get("rtt_s")),
        "cpu_fraction": _known(means.get("cpu_share")),
        "throttled_fraction": _known(means.get("throttled")),
    }


def _degraded(state: RunState, outcome: Outcome) -> list[str]:
    found = [str(entry) for entry in state.degradations.values()]
    if state.arbitrator.restarts:
        times = "once" if state.arbitrator.restarts == 1 else f"{state.arbitrator.restarts} times"
        found.append(f"arbitrator restarted {times}")
    return list(dict.fromkeys((*outcome.degraded, *found)))


def _train_s(workers: list[WorkerState]) -> float | None:
    """Longest training time a worker told; of workers that did not finish, first line to last window."""
    told = [worker.train_s for worker in workers if worker.train_s is not None]
    seen = [w.last_s - w.started_s for w in workers if w.last_s is not None and w.started_s is not None]
    return max(told or seen, default=None)


def _time_to_accuracy(accuracy: MetricCurve | None, target: float | None) -> float | None:
    if accuracy is None or target is None:
        return None
    points = zip(accuracy.elapsed_s, accuracy.values, strict=True)
    return next((round(elapsed_s, 3) for elapsed_s, value in points if value >= target), None)


def _first(values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _count(value: float) -> int | None:
    return None if math.isnan(value) else round(value)


def _known(value: float | None) -> float | None:
    """A figure rounded to six decimals; null in place of NaN, which JSON does not know."""
    return None if value is None or not math.isfinite(value) else round(value, 6)
