"""Training progress of one iteration by batch size: the quadratic model of gradient noise. Pure.

McCandlish et al. (arXiv 1812.06162, 2.2): a step of size e, in units of the largest noiseless optimal step,
with a gradient averaged over B samples lowers the loss, in units of the best noiseless step, by

    f = 2 e - e^2 (1 + N / B) = h (2 - h) / (1 + N / B),    h = e (1 + N / B)    N: gradient noise scale, in samples

which is largest at h = 1 and negative beyond h = 2. The model assumes that the script's learning rate is tuned for B_0,
the sum of the first sizes: h = `tuning` there, while N changes. At another B the learning-rate rule multiplies e by 1
(none), B/B_0 (linear), sqrt(B/B_0), or AdaScale's gain (arXiv 2007.05105) (1 + N/B_0) / (1 + N/B), which keeps
h = `tuning` at any B, as Pollux's efficiency assumes. This assumption and the constants below are chosen by us.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dynamix_ps.apportion import Whole
from dynamix_ps.metrics.noise import SMOOTHING
from dynamix_ps.policy.base import LR_RULES
from dynamix_ps.policy.window_arrays import WindowArrays, ratio

PRIOR_WEIGHT = 1 - SMOOTHING**3  # as much as three windows
LARGEST_NOISE = 64.0  # global batches; a larger noise scale looks the same as no signal
NOISIEST = 1e12  # samples; larger noise scales make no difference
TUNING = 0.7  # the script's learning rate at the first global batch, over the best one
FINISH_BEGINS = 0.75  # of the training
FALLEN = 0.99  # of its largest value; below, the script itself lowers the learning rate
LARGEST_STEP = np.float32(3.0)  # h is cut off here: f >= -3 / (1 + N/B)
_NONE, _LINEAR, _SQRT, _ADASCALE = range(len(LR_RULES))

Reals = NDArray[np.floating[Any]]


def step_progress(
    rule: NDArray[np.int8], tuning: Reals | float, reference: Reals, noise_scale: Reals, batch: Reals
) -> Reals:
    """f: mean progress of one iteration with global batch `batch`, negative where the learning rate is too large.

    Args:
        rule: index into LR_RULES.
        reference: B_0.
    """
    per_step = 1 + noise_scale / batch
    if rule.ndim == 0 and int(rule) == _ADASCALE:  # a single job
        step: Reals = np.minimum(tuning, LARGEST_STEP)
    else:
        factor = rule_factor(rule, reference, noise_scale, batch)
        scaled = tuning * factor * per_step / (1 + noise_scale / reference)
        step = np.minimum(np.where(rule == _ADASCALE, tuning, scaled) if rule.ndim else scaled, LARGEST_STEP)
    gained: Reals = step * (2 - step) / per_step
    return gained


def rule_factor(rule: NDArray[np.int8], reference: Reals, noise_scale: Reals, batch: Reals) -> Reals:
    """What the rule multiplies the learning rate by at global batch `batch`. Arguments as in `step_progress`."""
    scale = batch / reference
    if rule.ndim == 0 and (only := int(rule)) != _ADASCALE:  # a single job
        return np.asarray(scale if only == _LINEAR else np.sqrt(scale) if only == _SQRT else 1.0)
    gain = (1 + noise_scale / reference) / (1 + noise_scale / batch)
    others = np.where(rule == _ADASCALE, gain, 1)
    factor: Reals = np.where(rule == _LINEAR, scale, np.where(rule == _SQRT, np.sqrt(scale), others))
    return factor


def efficiency(window: WindowArrays, batch: Whole | Reals, noise_scale: Reals) -> Reals:
    """Progress of one iteration at global batch `batch`, (...,) or (candidates, ...), under the job's rule.

    Where the noise scale, (...,), is unknown, the first global batch takes its place: this makes the user's choice a
    reasonable one.
    """
    noise_scale = np.where(np.isfinite(noise_scale), noise_scale, window.reference_batch)
    return step_progress(window.lr_rule, TUNING, window.reference_batch, noise_scale, np.maximum(batch, 1))


def goodput(window: WindowArrays, batch: ArrayLike, iteration_s: ArrayLike, noise_scale: float) -> Reals:
    """Progress per second of a live cluster, in a unit that depends only on the job and `noise_scale`.

    Samples per second where the noise scale is NaN (not known).

    Args:
        batch: global batches of any shape.
        iteration_s: durations of their iterations, of the same shape.
    """
    if math.isnan(noise_scale):
        return np.asarray(np.asarray(batch) / np.asarray(iteration_s))
    reference, noise = np.maximum(window.reference_batch, 1.0), np.asarray(min(noise_scale, NOISIEST))
    progress = step_progress(window.lr_rule, TUNING, reference, noise, np.maximum(np.asarray(batch), 1.0))
    return np.asarray(progress / np.asarray(iteration_s))


def finishing(window: WindowArrays) -> NDArray[np.bool_]:
    """Whether training, (...,), is in its last quarter, where a larger batch is better than `efficiency` says.

    late_batch.py explains why. False if the end is unknown, if the script lowers its learning rate itself, or if the
    rate is proportional to B, because the noise, lr / B, then stays the same.
    """
    late = np.asarray(window.trained_ratio) >= FINISH_BEGINS
    if not late.any():
        return np.asarray(late)
    return np.asarray(late & (np.asarray(window.lr_ratio) >= FALLEN) & (window.lr_rule != _LINEAR))


class NoiseScale:
    """The gradient noise scale V / S over windows, shape (...,): exponential means of V and of S, then their ratio.

    Both are in units of the window's |g|^2. Otherwise the first windows would outweigh all later ones, because
    gradients shrink tenfold or more in them. An unknown estimate changes nothing.

    One window gives one estimate, which says little. So there is a prior, V / S = B_0 with PRIOR_WEIGHT: it trusts the
    user's first global batch. `estimated` leaves the prior out.
    """

    def __init__(self, *shape: int) -> None:
        self._means = np.zeros((2, *shape))  # of V and S, with the prior
        self._prior = np.zeros((2, *shape))  # the part of the prior left in the means
        self._begun = np.zeros(shape, dtype=np.bool_)
        self._global_batch: NDArray[np.int64] = np.ones(shape, dtype=np.int64)

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Forget some environments."""
        self._means[:, which] = 0.0
        self._prior[:, which] = 0.0
        self._begun[which] = False

    def observe(self, window: WindowArrays) -> None:
        """Take in a window."""
        self._global_batch = window.global_batch
        seen = ratio(np.array((window.noise_variance, window.noise_signal)), window.grad_sq_global)
        known = np.isfinite(seen).all(axis=0)
        first = known & ~self._begun
        if first.any():
            half = np.stack(np.broadcast_arrays(PRIOR_WEIGHT * window.reference_batch / 2, PRIOR_WEIGHT / 2))
            self._means, self._prior = np.where(first, half, self._means), np.where(first, half, self._prior)
            self._begun = self._begun | first
        fresh = (1 - SMOOTHING) * known
        self._means = self._means + fresh * (np.where(known, seen, 0.0) - self._means)
        self._prior = self._prior - fresh * self._prior

    @property
    def expected(self) -> Reals:
        """Samples, at least 0 and at most LARGEST_NOISE global batches; NaN before the first estimate.

        If noise hides the signal, the noise scale is large, not unknown.
        """
        variance, signal = self._means
        smallest = variance / (LARGEST_NOISE * np.maximum(self._global_batch, 1))
        return ratio(np.maximum(variance, 0.0), np.maximum(signal, smallest))

    @property
    def estimated(self) -> float:
        """Samples, for a live cluster: infinite if S is not positive, NaN before the first estimate."""
        if not self._begun:
            return math.nan
        variance, signal = (self._means - self._prior).tolist()
        return max(variance, 0.0) / signal if signal > 0 else math.inf
