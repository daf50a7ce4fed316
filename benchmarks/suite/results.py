"""What one cell of a grid left behind, and its way to disk and back.

A cell is one training: scenario x workload x contender x seed. Its result is one JSON file; `export` turns those of a
grid into CSV tables, which are all that the report reads:

    cells.csv       a line per cell: how it ended and its figures
    curves.csv      test accuracy over time, samples and epochs
    plans.csv       batch sizes over time, plan 0 included
    workers.csv     where every worker's time went
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Ended = Literal["done", "timed out", "failed"]


@dataclass(frozen=True, slots=True, order=True)
class CellName:
    """Which training it is."""

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
    loss: float


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


@dataclass(frozen=True, slots=True)
class CellResult:
    """Everything that is kept of a cell. None: not known; a time to an accuracy that was not reached is not here."""

    name: CellName
    ended: Ended
    reason: str  # empty when done
    network: str  # "namespaces" or "loopback"
    emulation: str  # how speeds differed
    thresholds: tuple[float, ...]  # accuracies whose times count; the last is the target
    limit_s: float  # of training
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

    def time_to_s(self, accuracy: float) -> float | None:
        """When the test accuracy was first at least this; None: never."""
        return next((point.time_s for point in self.curve if point.accuracy >= accuracy), None)


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
