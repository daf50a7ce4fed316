"""From closed windows to the state `(s_i, s_global)` that a learned policy sees. The numbers are in features.py.

A worker that did not report is a row of unknown values; an unknown value is NaN. Late and duplicate reports are
dropped earlier (arbitrator/windows.py). Policies skip windows that are not clean, so a pause, or a plan that was in
force for only part of a window, never counts as a gain or a loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.messages import NAN
from dynamix_ps.policy.learned import features
from dynamix_ps.policy.learned.features import Seen
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.model.network_times import WindowNetworkTimes, network_of
from dynamix_ps.policy.window_arrays import Array, WindowArrays, mean_known, ratio

REFERENCE_WINDOWS = 3  # iteration times are relative to the mean of this many first windows


@dataclass(frozen=True, slots=True)
class State:
    """All workers at the end of one window, and the quantities that rewards need in plain units."""

    rows: Array  # (..., workers, len(NAMES)), NaN where unknown
    window: WindowArrays
    accuracy_gain: Array  # (..., workers)
    gradient_variance: Array  # (..., workers)
    compute_s: Array  # (..., workers), computing per iteration, as a CPU quota allows it (compute_times.sustained_s)
    speed: Array  # (..., workers), samples per second of that
    iteration_time: Array  # (...,), in units of the reference
    reference_s: Array  # (...,)
    reference_size: Array  # (...,), mean global batch of the windows of the reference
    noise_scale: Array  # (...,), samples, NaN before the first estimate
    network: WindowNetworkTimes


class StateBuilder:
    """Turns windows into states, lets the model of the cluster observe them, and keeps the values that changes are
    relative to."""

    def __init__(self, model: ClusterModel) -> None:
        self._model = model
        shape, whole = model.shape, model.shape[:-1]
        self._accuracy = np.full(shape, np.nan)
        self._loss = np.full(shape, np.nan)
        self._global_accuracy = np.full(whole, np.nan)
        self._global_loss = np.full(whole, np.nan)
        self._reference_sum_s = np.zeros(whole)
        self._reference_sizes = np.zeros(whole)
        self._reference_windows = np.zeros(whole)

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Forget some environments; their next window is the first of another run."""
        self._model.restart(which)
        for unknown in (self._accuracy, self._loss, self._global_accuracy, self._global_loss):
            unknown[which] = np.nan
        for zero in (self._reference_sum_s, self._reference_sizes, self._reference_windows):
            zero[which] = 0.0

    def observe(self, window: WindowArrays) -> State:
        """The state at the end of a clean window. Call once per window, in order."""
        self._take_reference(window)
        self._model.observe(window)
        compute_s = self._model.compute_s
        speed = ratio(window.samples, np.where(window.samples > 0, self._model.computing_s, 0.0))
        parts_s = np.array((window.compute_s, window.push_pull_s, window.wait_s))
        reference_s = self._reference_sum_s / self._reference_windows
        seen = Seen(
            window=window,
            accuracy_gain=window.accuracy - self._accuracy,
            loss_before=self._loss,
            global_accuracy_before=self._global_accuracy,
            global_loss_before=self._global_loss,
            iteration_time=ratio(window.duration_s / window.iterations, reference_s),
            time_shares=ratio(parts_s, window.duration_s[..., None]),
            gradient_variance=gradient_variance(window),
            noise_scale=self._model.noise.expected,
            speed=speed,
            mean_speed=mean_known(speed, NAN),
        )
        state = State(
            rows=features.rows(seen),
            window=window,
            accuracy_gain=seen.accuracy_gain,
            gradient_variance=seen.gradient_variance,
            compute_s=compute_s,
            speed=speed,
            iteration_time=seen.iteration_time,
            reference_s=reference_s,
            reference_size=self._reference_sizes / self._reference_windows,
            noise_scale=seen.noise_scale,
            network=network_of(window, compute_s),
        )
        if window.everyone:
            self._accuracy, self._loss = window.accuracy.astype(np.float64), window.loss.astype(np.float64)
        else:
            before = np.where(window.there, (self._accuracy, self._loss), np.nan)  # who comes back begins anew
            self._accuracy, self._loss = np.where(window.present, (window.accuracy, window.loss), before)
        self._global_accuracy, self._global_loss = np.array(window.global_accuracy), np.array(window.global_loss)
        return state

    def _take_reference(self, window: WindowArrays) -> None:
        early = self._reference_windows < REFERENCE_WINDOWS
        if not early.any():
            return
        self._reference_sum_s = self._reference_sum_s + np.where(early, window.duration_s / window.iterations, 0.0)
        self._reference_sizes = self._reference_sizes + np.where(early, window.global_batch, 0)
        self._reference_windows = self._reference_windows + early


def gradient_variance(window: WindowArrays) -> Array:
    """The part of |g_i|^2 that is noise, 1 - |g|^2 / |g_i|^2, at least 0."""
    return 1.0 - np.minimum(ratio(window.grad_sq_global[..., None], window.grad_sq_local), 1.0)
