"""From closed windows to the state `(s_i, s_global)` that a learned policy sees. The numbers are in features.py.

Robust by construction: a worker that did not report is a row of unknowns, an unknown value is NaN, late and
duplicate reports never get here (arbitrator/windows.py), and policies leave out windows that are not clean, so
a pause or a half-applied plan never becomes a gain or a loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.messages import NAN, LinkView, WindowRecord
from dynamix_ps.metrics.noise import GradientNoise, SmoothedNoise
from dynamix_ps.policy import features
from dynamix_ps.policy.base import View
from dynamix_ps.policy.features import ALL, LOCAL, SHARED, ClusterWindow, WorkerWindow

REFERENCE_WINDOWS = 3  # the mean iteration time of this many first windows is the unit of iteration time


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
        return np.clip(np.array(rows, dtype=np.float64), _LOW, _HIGH)


_LOW = np.array([feature.low for feature in ALL])
_HIGH = np.array([feature.high for feature in ALL])


class StateBuilder:
    """Turns views into states; remembers what changes are measured against."""

    def __init__(self, n_workers: int) -> None:
        self._accuracy = [NAN] * n_workers
        self._loss = [NAN] * n_workers
        self._global_accuracy = self._global_loss = NAN
        self._reference_s: list[float] = []
        self._noise = SmoothedNoise()

    def observe(self, view: View) -> ClusterState:
        """The state at the end of a clean window. Call once per window, in order."""
        first = view.reported[0]
        if len(self._reference_s) < REFERENCE_WINDOWS:
            self._reference_s.append(first.duration_s / first.iterations)
        noise = self._noise.update(GradientNoise(first.noise_variance, first.noise_signal))
        mean_speed = _mean([features.speed(record) for record in view.reported])
        workers = tuple(self._worker(record, view, mean_speed) if record else None for record in view.records)
        cluster = ClusterWindow(
            record=first,
            accuracy_before=self._global_accuracy,
            loss_before=self._global_loss,
            noise_scale=noise.scale,
            global_batch=view.plan.global_batch,
            largest_batch=sum(high for _, high in view.bounds),
            workers=len(view.records),
            servers=view.servers,
        )
        self._global_accuracy, self._global_loss = first.global_accuracy, first.global_loss
        return ClusterState(workers, tuple(feature.value(cluster) for feature in SHARED))

    def _worker(self, record: WindowRecord, view: View, mean_speed: float) -> State:
        rank = record.rank
        window = WorkerWindow(
            record=record,
            link=view.links[rank] if view.links else LinkView(rank),
            accuracy=record.global_accuracy if math.isnan(record.accuracy) else record.accuracy,
            accuracy_before=self._accuracy[rank],
            loss_before=self._loss[rank],
            reference_s=sum(self._reference_s) / len(self._reference_s),
            global_batch=view.plan.global_batch,
            workers=len(view.records),
            mean_speed=mean_speed,
        )
        self._accuracy[rank], self._loss[rank] = window.accuracy, record.loss
        return State(
            local=tuple(feature.value(window) for feature in LOCAL),
            accuracy=window.accuracy,
            accuracy_gain=window.accuracy - window.accuracy_before,
            iteration_time=features.iteration_time(window),
            batch_size=record.batch_size,
            gradient_std=record.grad_norm_std,
            gradient_variance=features.gradient_variance(record),
        )


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else NAN
