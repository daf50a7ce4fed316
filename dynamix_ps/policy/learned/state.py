"""From closed windows to the state `(s_i, s_global)` that a learned policy sees. The numbers are in features.py.

Robust by construction: a worker that did not report is a row of unknowns, an unknown value is NaN, late and
duplicate reports never get here (arbitrator/windows.py), and policies leave out windows that are not clean, so
a pause or a half-applied plan never becomes a gain or a loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.messages import NAN
from dynamix_ps.metrics.noise import SMOOTHING
from dynamix_ps.policy.cluster_model.compute_times import sustained_s
from dynamix_ps.policy.cluster_model.network_times import exposed_s
from dynamix_ps.policy.learned import features
from dynamix_ps.policy.learned.features import Seen
from dynamix_ps.policy.window_arrays import Array, WindowArrays, known_or, mean_known, ratio

REFERENCE_WINDOWS = 3  # the mean iteration time of this many first windows is the unit of iteration time
PRIOR_NOISE = 1 - SMOOTHING**3  # as if three windows had said it (chosen by us)
LARGEST_NOISE = 64.0  # global batches; a noise scale beyond that cannot be told from no signal at all (chosen by us)


@dataclass(frozen=True, slots=True)
class State:
    """All workers at the end of one window, and what rewards need of it in plain units."""

    rows: Array  # (..., workers, len(NAMES)), NaN where unknown
    window: WindowArrays
    accuracy_gain: Array  # (..., workers)
    gradient_variance: Array  # (..., workers)
    compute_s: Array  # (..., workers), computing per iteration, as a CPU quota allows it (compute_times.sustained_s)
    speed: Array  # (..., workers), samples per second of that
    iteration_time: Array  # (...,), in units of the reference
    reference_s: Array  # (...,)
    noise_scale: Array  # (...,), samples, NaN until it was first estimated
    exposed_s: Array  # (..., workers), network time beyond computing, per iteration (network_times.py)
    hidden_s: Array  # (...,), network time that computing hides, per iteration


class StateBuilder:
    """Turns windows into states; remembers what changes are measured against.

    Args:
        shape: (workers,) live, (environments, workers) in the simulator.
    """

    def __init__(self, *shape: int) -> None:
        whole = shape[:-1]
        self._accuracy = np.full(shape, np.nan)
        self._loss = np.full(shape, np.nan)
        self._global_accuracy = np.full(whole, np.nan)
        self._global_loss = np.full(whole, np.nan)
        self._reference_sum_s = np.zeros(whole)
        self._reference_windows = np.zeros(whole)
        self._variance, self._signal, self._weight = np.zeros(whole), np.zeros(whole), np.zeros(whole)
        self._throttled = np.zeros(shape)  # the most that was ever seen

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Forget what is known of some environments, whose next window is the first of another run."""
        for unknown in (self._accuracy, self._loss, self._global_accuracy, self._global_loss):
            unknown[which] = np.nan
        for zero in (self._reference_sum_s, self._reference_windows, self._variance, self._signal, self._weight):
            zero[which] = 0.0
        self._throttled[which] = 0.0

    def observe(self, window: WindowArrays) -> State:
        """The state at the end of a clean window. Call once per window, in order."""
        self._take_reference(window)
        self._throttled = np.fmax(self._throttled, window.throttled)
        compute_s = sustained_s(
            window.compute_s,
            window.cpu_ratio * window.duration_s[..., None],
            window.cpu_cores,
            self._throttled,
        )
        speed = features.speed(window, compute_s)
        compute_s = compute_s / window.iterations[..., None]
        exposed, hidden_s = exposed_s(window, compute_s)
        reference_s = ratio(self._reference_sum_s, self._reference_windows)
        seen = Seen(
            window=window,
            accuracy_gain=window.accuracy - self._accuracy,
            loss_before=self._loss,
            global_accuracy_before=self._global_accuracy,
            global_loss_before=self._global_loss,
            iteration_time=ratio(window.duration_s / window.iterations, reference_s),
            gradient_variance=features.gradient_variance(window),
            noise_scale=self._smoothed_noise_scale(window),
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
            noise_scale=seen.noise_scale,
            exposed_s=exposed,
            hidden_s=hidden_s,
        )
        self._accuracy = np.where(window.present, window.accuracy, self._accuracy)
        self._loss = np.where(window.present, window.loss, self._loss)
        self._global_accuracy, self._global_loss = np.array(window.global_accuracy), np.array(window.global_loss)
        return state

    def _take_reference(self, window: WindowArrays) -> None:
        early = self._reference_windows < REFERENCE_WINDOWS
        self._reference_sum_s = self._reference_sum_s + np.where(early, window.duration_s / window.iterations, 0.0)
        self._reference_windows = self._reference_windows + early

    def _smoothed_noise_scale(self, window: WindowArrays) -> Array:
        """V / S, each smoothed apart as in metrics/noise.py; an unknown estimate changes nothing.

        A window estimates it once, which says little. So before the first estimate, PRIOR_NOISE stands for V / S = B0:
        the global batch of the first sizes is as good as its user thinks.

        Both in units of the window's |g|^2: gradients shrink tenfold and more in the first windows, which otherwise
        would outweigh all that follow. A signal that drowns in noise makes a large noise scale, not an unknown one.
        """
        variance, signal = (ratio(part, window.grad_sq_global) for part in (window.noise_variance, window.noise_signal))
        known = np.isfinite(variance) & np.isfinite(signal)
        first = known & (self._weight == 0)
        self._variance = np.where(first, PRIOR_NOISE * window.reference_batch / 2, self._variance)
        self._signal = np.where(first, PRIOR_NOISE / 2, self._signal)
        self._weight = np.where(first, PRIOR_NOISE, self._weight)
        fresh = (1 - SMOOTHING) * known
        self._variance = self._variance + fresh * (known_or(variance) - self._variance)
        self._signal = self._signal + fresh * (known_or(signal) - self._signal)
        self._weight = self._weight + fresh * (1 - self._weight)
        smallest = self._variance / (LARGEST_NOISE * np.maximum(window.global_batch, 1))
        variance = np.maximum(self._variance, 0.0)
        return ratio(variance, np.maximum(self._signal, smallest))
