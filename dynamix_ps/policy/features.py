"""From window records to the numbers that a learned policy sees.

One vector per worker and one shared by all, in the order of LOCAL and SHARED; an unknown value is NaN here
and 0 with a mask of 0 after normalisation (ppo/normalise.py). The groups are those of DYNAMIX (arXiv
2510.08522, IV-B: network, system, training, global); its exact list and scales are not published, so every
formula below is chosen by us. Left out for want of a source in the records: the standard deviation of the
accuracy within a window, and the fraction of the epoch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.messages import NAN, WindowRecord
from dynamix_ps.policy.base import View

REFERENCE_WINDOWS = 3  # the mean iteration time of this many first windows is the unit of iteration time
LARGEST = 1e6  # features are cut off here, so that one absurd value cannot ruin the normaliser
_GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Feature:
    name: str
    unit: str
    meaning: str


LOCAL = (
    Feature("throughput", "log(bytes/s)", "log1p of bytes pushed per second"),
    Feature("retransmits", "log(1/s)", "log1p of retransmitted segments per second"),
    Feature("cpu_ratio", "1", "CPU seconds per wall second of the training process"),
    Feature("memory", "log(GiB)", "log1p of the resident set in GiB"),
    Feature("accuracy", "1", "mean accuracy of this worker's batches"),
    Feature("accuracy_gain", "1", "its change since the window seen before"),
    Feature("iteration_time", "1", "iteration time over the reference iteration time"),
    Feature("compute_share", "1", "part of the window spent computing (iteration time is equal for all under BSP)"),
    Feature("gradient_std", "1", "standard deviation of |g_i| over its mean"),
    Feature("gradient_variance", "1", "1 - |g|^2 / |g_i|^2, at least 0: the part of |g_i|^2 that is noise"),
    Feature("batch", "log2/10", "log2 of the batch size over 10"),
)
SHARED = (
    Feature("loss", "loss", "mean loss over all samples of the window"),
    Feature("loss_trend", "1", "relative fall of that loss since the window seen before"),
    Feature("global_accuracy", "1", "mean accuracy over all samples of the window"),
    Feature("global_batch", "1", "B over the largest B that the bounds allow"),
)
NAMES = tuple(feature.name for feature in LOCAL + SHARED)


@dataclass(frozen=True, slots=True)
class State:
    """One worker's part: its LOCAL values, and what the reward needs of them in plain units."""

    local: tuple[float, ...]
    accuracy: float
    accuracy_gain: float
    iteration_time: float  # in units of the reference
    batch_size: int
    gradient_std: float
    gradient_variance: float


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All workers at the end of one window. `workers[i]` is None where worker i did not report."""

    workers: tuple[State | None, ...]
    shared: tuple[float, ...]

    def rows(self) -> NDArray[np.float64]:
        """One row of LOCAL + SHARED values per worker, NaN where unknown; shape (workers, len(NAMES))."""
        unknown = (NAN,) * len(LOCAL)
        rows = [(worker.local if worker else unknown) + self.shared for worker in self.workers]
        return np.clip(np.array(rows, dtype=np.float64), -LARGEST, LARGEST)


class Features:
    """Turns views into states; remembers what changes are measured against."""

    def __init__(self, n_workers: int) -> None:
        self._accuracy = [NAN] * n_workers
        self._loss = NAN
        self._reference_s: list[float] = []

    def observe(self, view: View) -> ClusterState:
        """The state at the end of a clean window."""
        first = view.reported[0]
        if len(self._reference_s) < REFERENCE_WINDOWS:
            self._reference_s.append(first.duration_s / first.iterations)
        reference_s = sum(self._reference_s) / len(self._reference_s)
        workers = tuple(self._worker(record, reference_s) if record else None for record in view.records)
        largest = sum(high for _, high in view.bounds)
        trend = (self._loss - first.global_loss) / max(abs(self._loss), 1e-9)
        shared = (first.global_loss, trend, first.global_accuracy, view.plan.global_batch / largest)
        self._loss = first.global_loss
        return ClusterState(workers, shared)

    def _worker(self, record: WindowRecord, reference_s: float) -> State:
        accuracy = record.global_accuracy if math.isnan(record.accuracy) else record.accuracy
        gain = accuracy - self._accuracy[record.rank]
        self._accuracy[record.rank] = accuracy
        iteration_time = _ratio(record.duration_s / record.iterations, reference_s)
        signal = _ratio(record.grad_sq_global, record.grad_sq_local)
        variance = 1.0 - min(signal, 1.0)  # stays NaN where it is unknown
        local = (
            math.log1p(_ratio(record.bytes_pushed, record.duration_s)),
            math.log1p(record.retransmits_per_s),
            record.cpu_ratio,
            math.log1p(record.memory_bytes / _GIB),
            accuracy,
            gain,
            iteration_time,
            _ratio(record.compute_s, record.duration_s),
            record.grad_norm_std,
            variance,
            math.log2(max(record.batch_size, 1)) / 10,
        )
        return State(local, accuracy, gain, iteration_time, record.batch_size, record.grad_norm_std, variance)


def _ratio(value: float, unit: float) -> float:
    return value / unit if unit > 0 else NAN
