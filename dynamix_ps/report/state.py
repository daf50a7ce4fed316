"""What is known of a run so far: a fold over the lines of the workers and of the arbitrator's journal."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dynamix_ps.report.tail import Line

EVENTS_KEPT = 50
TIME_PARTS = ("compute", "push_pull", "wait", "input")


@dataclass(slots=True)
class WorkerState:
    """One worker: the last window for the live view, totals for the summary."""

    rank: int
    phase: str = "starting"
    batch_size: int | None = None
    previous_batch_size: int | None = None
    first_batch_size: int | None = None
    iteration: int = 0
    samples_per_s: float = math.nan  # last window
    shares: dict[str, float] = field(default_factory=dict)  # of the last window's duration, by part
    loss: float = math.nan
    accuracy: float = math.nan
    started_s: float | None = None  # unix time
    last_s: float | None = None  # unix time of its last window
    comm: str | None = None
    byteps_version: str | None = None
    samples: int = 0
    windows: int = 0
    totals: dict[str, float] = field(default_factory=dict)  # seconds over all windows by part, and "duration"
    train_s: float | None = None
    error: str | None = None

    def fraction(self, part: str) -> float | None:
        """Share of all windows' time spent in one part; pauses (evaluation, checkpoints) are in no window's time."""
        return self.totals[part] / self.totals["duration"] if self.totals.get("duration") else None


@dataclass(slots=True)
class PlanState:
    """A plan's way from the arbitrator to all workers."""

    version: int
    batch_sizes: tuple[int, ...]
    window: int | None = None
    proposed: tuple[int, ...] | None = None  # what the policy asked for, before the guards
    reward: float | None = None  # of the plan before, as known at this decision
    decision_ms: float | None = None
    published_s: float | None = None  # unix time
    iteration: int | None = None  # in force from this iteration on
    applied_s: float | None = None  # unix time at which the last worker had it in force
    applied_by: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Evaluation:
    """Accuracy on the test set; `elapsed_s` counts from the start of training on rank 0."""

    iteration: int
    epoch: int
    elapsed_s: float
    accuracy: float
    loss: float


@dataclass(slots=True)
class Degradation:
    """One thing that worked less well than asked for, gathered over workers and occurrences."""

    what: str
    details: list[str] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)
    open_sources: set[str] = field(default_factory=set)  # those that have not said "recovered" since

    def __str__(self) -> str:
        shown = "; ".join(self.details[:3]) + ("; ..." if len(self.details) > 3 else "")
        notes = [", ".join(sorted(self.sources))] if self.sources else []
        if self.sources and not self.open_sources:
            notes.append("recovered")
        return self.what + (f": {shown}" if shown else "") + (f" ({'; '.join(notes)})" if notes else "")


class RunState:
    """Grows with every line. `run` and `policy` are what the live view calls it; all else comes from the lines."""

    def __init__(self, n_workers: int, run: str = "run", policy: str = "-") -> None:
        self.run = run
        self.policy = policy
        self.workers = {rank: WorkerState(rank) for rank in range(n_workers)}
        self.plans: dict[int, PlanState] = {}
        self.observed: list[PlanState] = []
        self.evaluations: list[Evaluation] = []
        self.degradations: dict[str, Degradation] = {}
        self.events: deque[Line] = deque(maxlen=EVENTS_KEPT)
        self.n_events = 0
        self.plan_version = 0
        self.arbitrator_starts = 0
        self.arbitrator_restarts = 0

    @property
    def iteration(self) -> int:
        return max((worker.iteration for worker in self.workers.values()), default=0)

    @property
    def global_batch(self) -> int | None:
        sizes = [worker.batch_size for worker in self.workers.values()]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def started_s(self) -> float | None:
        """Unix time at which training began: rank 0's, whose clock also stamps the evaluations."""
        return self.workers[0].started_s

    def applied_plans(self) -> list[PlanState]:
        """Plans that came into force on every worker, oldest first."""
        whole = [plan for plan in self.plans.values() if len(plan.applied_by) >= len(self.workers)]
        return sorted(whole, key=lambda plan: plan.version)

    def apply(self, source: str, line: Line) -> None:
        """Take in one line. Raises KeyError, TypeError or ValueError when it lacks what its kind must have."""
        kind = line["kind"]
        handler = (_JOURNAL if source == "arbitrator" else _WORKER).get(kind)
        if handler is not None:
            handler(self, line)
        if kind == "degraded":
            self._degrade(line["what"], line.get("detail"), source)
        elif kind == "recovered" and line["what"] in self.degradations:
            self.degradations[line["what"]].open_sources.discard(source)

    def note(self, event: Line) -> None:
        """Remember an event for the live view."""
        self.events.append(event)
        self.n_events += 1

    def _degrade(self, what: str, detail: object, source: str) -> None:
        entry = self.degradations.setdefault(what, Degradation(what))
        if detail and str(detail) not in entry.details:
            entry.details.append(str(detail))
        entry.sources.add(source)
        entry.open_sources.add(source)

    def _worker(self, line: Line) -> WorkerState:
        return self.workers.setdefault(line["rank"], WorkerState(line["rank"]))

    def _started(self, line: Line) -> None:
        worker = self._worker(line)
        worker.phase, worker.error = "running", None
        worker.comm, worker.byteps_version = line["comm"], line["byteps_version"]
        worker.iteration = max(worker.iteration, line["iteration"])
        if worker.started_s is None:
            worker.started_s = line["time_s"]
            worker.first_batch_size = line["batch_size"]
        worker.batch_size = line["batch_size"]

    def _window(self, line: Line) -> None:
        worker = self._worker(line)
        worker.phase = "running"
        worker.batch_size = line["batch_size"]
        worker.iteration = line["first_iteration"] + line["iterations"]
        worker.last_s = line["time_s"]
        worker.loss, worker.accuracy = number(line["loss"]), number(line["accuracy"])
        worker.windows += 1
        worker.samples += line["samples"]
        seconds = {part: number(line[f"{part}_s"]) for part in TIME_PARTS} | {"duration": number(line["duration_s"])}
        duration = seconds["duration"]
        if duration > 0:
            worker.samples_per_s = line["samples"] / duration
            worker.shares = {part: seconds[part] / duration for part in TIME_PARTS}
        for part, value in seconds.items():
            worker.totals[part] = worker.totals.get(part, 0.0) + (0.0 if math.isnan(value) else value)

    def _plan_applied(self, line: Line) -> None:
        version, sizes = line["version"], tuple(line["batch_sizes"])
        worker = self._worker(line)
        worker.previous_batch_size, worker.batch_size = worker.batch_size, sizes[worker.rank]
        self.plan_version = max(self.plan_version, version)
        if version == 0:
            return
        plan = self.plans.setdefault(version, PlanState(version, sizes))
        plan.iteration = line["iteration"]
        plan.applied_by.add(worker.rank)
        plan.applied_s = max(plan.applied_s or 0.0, line["time_s"])

    def _evaluation(self, line: Line) -> None:
        began = self.started_s if self.started_s is not None else line["time_s"]
        self._worker(line).iteration = line["iteration"]
        self.evaluations.append(
            Evaluation(
                iteration=line["iteration"],
                epoch=line["epoch"],
                elapsed_s=line["time_s"] - began,
                accuracy=number(line["accuracy"]),
                loss=number(line["loss"]),
            )
        )

    def _stall(self, line: Line) -> None:
        worker = self._worker(line)
        missing = ", ".join(str(rank) for rank in line["missing"]) or "unknown"
        worker.phase = f"waits for {missing}"
        detail = f"iteration {line['iteration']} waited for worker {missing}"
        self._degrade("stall", detail, f"worker-{worker.rank}")

    def _finished(self, line: Line) -> None:
        worker = self._worker(line)
        worker.phase = "finished"
        worker.iteration, worker.samples, worker.train_s = line["iterations"], line["samples"], line["train_s"]

    def _failed(self, line: Line) -> None:
        worker = self._worker(line)
        worker.phase, worker.error = "failed", str(line["error"])

    def _arbitrator_started(self, line: Line) -> None:
        self.arbitrator_starts += 1
        self.arbitrator_restarts = max(self.arbitrator_starts - 1, line.get("restarts") or 0)

    def _plan(self, line: Line) -> None:
        known = self.plans.get(line["version"])
        plan = _published(line)
        if known is not None:  # a worker's line was read first
            plan.iteration, plan.applied_s, plan.applied_by = known.iteration, known.applied_s, known.applied_by
        self.plans[plan.version] = plan

    def _observed(self, line: Line) -> None:
        self.observed.append(_published(line))

    def _lease_lost(self, line: Line) -> None:
        worker = self._worker(line)
        if worker.phase == "running":
            worker.phase = "silent"

    def _lease_back(self, line: Line) -> None:
        worker = self._worker(line)
        if worker.phase == "silent":
            worker.phase = "running"


_WORKER = {
    "started": RunState._started,
    "window": RunState._window,
    "plan_applied": RunState._plan_applied,
    "evaluation": RunState._evaluation,
    "stall": RunState._stall,
    "finished": RunState._finished,
    "failed": RunState._failed,
}
_JOURNAL = {
    "started": RunState._arbitrator_started,
    "plan": RunState._plan,
    "observed": RunState._observed,
    "lease_lost": RunState._lease_lost,
    "lease_back": RunState._lease_back,
}


def number(value: Any) -> float:
    """A JSON number; null, which stands for NaN in the files, becomes NaN."""
    return math.nan if value is None else float(value)


def _published(line: Line) -> PlanState:
    proposed: Iterable[int] | None = line.get("proposed")
    return PlanState(
        version=line["version"],
        batch_sizes=tuple(line["batch_sizes"]),
        window=line.get("window"),
        proposed=None if proposed is None else tuple(proposed),
        reward=line.get("reward"),
        decision_ms=line.get("decision_ms"),
        published_s=line.get("time_s"),
    )
