"""The result of one cell of a grid, written to and read from JSON.

A cell is one training: scenario x workload x contender x seed. Its result is one JSON file; `export` turns those of a
grid into CSV tables, which are all that the report reads:

    cells.csv       a line per cell: how it ended and its figures
    curves.csv      test accuracy and loss over time, samples and epochs
    plans.csv       batch sizes over time, plan 0 included
    workers.csv     where every worker's time went
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from benchmarks.workloads.goal import MetricName
from dynamix_ps.run_record.evaluations import TargetReached, first_reached, higher_is_better

Ended = Literal["done", "timed out", "diverged", "failed"]


@dataclass(frozen=True, slots=True, order=True)
class CellName:
    """Names one training; also its file."""

    scenario: str
    workload: str
    contender: str
    seed: int

    def __str__(self) -> str:
        """Also its file's name."""
        return f"{self.scenario}--{self.workload}--{self.contender}--s{self.seed}"


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One evaluation on the test data. Time is that of training, without the evaluations."""

    time_s: float
    samples: int
    epoch: float
    accuracy: float
    loss: float | None  # None: infinite

    def is_after(self, before: CurvePoint | None) -> bool:
        """Whether training went on between the two."""
        return before is None or self.samples > before.samples


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """Batch sizes in force from `time_s` on, by rank."""

    time_s: float
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorkerTimes:
    """Parts of one worker's training time; they sum to at most 1."""

    rank: int
    compute: float
    push_pull: float
    wait: float
    input: float


class Judged(Protocol):
    """What the result of a cell without a run needs; a workload has it."""

    @property
    def metric(self) -> MetricName: ...

    @property
    def thresholds(self) -> tuple[float, ...]: ...

    @property
    def limit_s(self) -> float: ...

    @property
    def epochs(self) -> int: ...


@dataclass(frozen=True, slots=True)
class CellResult:
    """Everything that is kept of a cell. None: not known."""

    name: CellName
    ended: Ended
    reason: str  # empty when done
    network: str  # "namespaces" or "loopback"
    emulation: str  # how speeds differed
    thresholds: tuple[float, ...]  # values of `metric` whose times count; the last is the target
    limit_s: float  # of training
    epochs: int  # that every training of its kind makes; one that has not reached the target by then may make more
    machine: str | None  # processor and cores
    machine_gflop_per_s: float | None  # just before it began (machine_speed.py)
    train_s: float | None  # with the evaluations
    samples: int
    iterations: int
    plans: int  # that were applied
    wait_fraction: float | None  # mean over workers
    compute_spread: float | None  # (slowest - fastest) / mean of the workers' computing times, median over windows
    decision_p50_ms: float | None
    decision_p99_ms: float | None
    fallback_windows: int  # in which the safety net decided
    windows: int  # that ended in a decision
    replayed: int  # of those, in how many a fresh policy decides the same from the same reports
    curve: tuple[CurvePoint, ...]
    sizes: tuple[PlanPoint, ...]
    workers: tuple[WorkerTimes, ...]
    metric: MetricName = "accuracy"  # that decides when a cell arrives; tables from before it was written have this

    def value(self, point: CurvePoint) -> float:
        """What counts of an evaluation."""
        if self.metric == "accuracy":
            return point.accuracy
        loss = math.inf if point.loss is None else point.loss
        return loss if self.metric == "loss" else loss / math.log(2)

    def time_to_s(self, threshold: float) -> float | None:
        """Seconds until the metric was first at least as good as this; None: never."""
        found = self.arrival(threshold)
        return None if found is None else found[0]

    def arrival(self, threshold: float) -> TargetReached | None:
        """Seconds and samples until the metric was first at least as good as this; see `first_reached`."""
        points = [now for before, now in zip((None, *self.curve), self.curve, strict=False) if now.is_after(before)]
        values = [(one.time_s, float(one.samples), self.value(one)) for one in points]
        return first_reached(values, threshold, bool(higher_is_better(self.metric)))


def without_run(cell: CellName, ended: Ended, reason: str, workload: Judged) -> CellResult:
    """The result of a cell of which only the end is known."""
    return CellResult(
        name=cell,
        ended=ended,
        reason=reason,
        network="",
        emulation="",
        thresholds=workload.thresholds,
        limit_s=workload.limit_s,
        epochs=workload.epochs,
        machine=None,
        machine_gflop_per_s=None,
        train_s=None,
        samples=0,
        iterations=0,
        plans=0,
        wait_fraction=None,
        compute_spread=None,
        decision_p50_ms=None,
        decision_p99_ms=None,
        fallback_windows=0,
        windows=0,
        replayed=0,
        curve=(),
        sizes=(),
        workers=(),
        metric=workload.metric,
    )


def write_result(folder: Path, result: CellResult) -> None:
    """Into `<folder>/<name>.json`, whole or not at all. Raises OSError."""
    file = folder / f"{result.name}.json"
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(result), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    fresh.replace(file)


def read_result(file: Path) -> CellResult:
    """Raises OSError, and ValueError naming the file where it holds no result."""
    try:
        raw: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        nested: dict[str, Any] = {
            "name": CellName(**raw.pop("name")),
            "thresholds": tuple(raw.pop("thresholds")),
            "curve": tuple(CurvePoint(**point) for point in raw.pop("curve")),
            "sizes": tuple(PlanPoint(point["time_s"], tuple(point["sizes"])) for point in raw.pop("sizes")),
            "workers": tuple(WorkerTimes(**one) for one in raw.pop("workers")),
        }
        return CellResult(**nested, **raw)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file}: not the result of a cell: {error}; delete it to run the cell again") from error
