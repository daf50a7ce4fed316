"""Goodput: the global batch of Pollux (OSDI 2021; AdaptDL), split so that unequal workers finish together (Cannikin,
arXiv 2402.05302).

    goodput(B)    = throughput(B) * efficiency(B)
    throughput(B) = B / T(B)                          T fitted on line: step_times.py
    efficiency(B) = (N + B0) / (N + B)                progress per sample relative to B0, N = V / S the noise scale

which is AdaScale's gain (V + S) / (V/s + S) over s = B / B0, with V the variance of the mean of B0 samples.
Defaults as in AdaptDL: 50 candidates spaced geometrically from B0 to the largest B that bounds allow; sizes change
only where that promises more than 1.05 times the goodput of the present ones. N is smoothed as in
metrics/noise.py, and is infinite while S is not positive (AdaptDL cuts S off at 0).

Chosen by us: where no worker can estimate N (one worker), B stays and only its split is chosen. That efficiency
supposes a learning rate that follows AdaScale's gain. Under another rule it would send B to where training diverges, so
goodput is what it stands for, progress per second, under the rule of the job (progress.py); under `adascale` both are
the same up to a constant factor.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from dynamix_ps.apportion import Whole
from dynamix_ps.metrics.noise import GradientNoise, SmoothedNoise
from dynamix_ps.policy.base import LR_RULES, Decision, View
from dynamix_ps.policy.cluster_model.compute_times import Array
from dynamix_ps.policy.cluster_model.efficiency import TUNING, step_progress
from dynamix_ps.policy.cluster_model.step_times import StepTimes

CANDIDATES = 50
SWITCH = 1.05  # times the present goodput
NOISIEST = 1e12  # samples; beyond, all noise scales are alike


class GoodputPolicy:
    """Chooses the global batch of largest goodput, and its split."""

    name = "goodput"

    def __init__(self, n_workers: int) -> None:
        self._times = StepTimes(n_workers)
        self._noise = SmoothedNoise()

    def decide(self, view: View) -> Decision:
        """New sizes, or the present ones where the window is not clean or nothing is worth a change."""
        keep = Decision(view.plan.batch_sizes)
        if not view.clean:
            return keep
        self._times.observe(view)
        first = view.reported[0]
        noise = GradientNoise(first.noise_variance, first.noise_signal)
        noise_scale = scale_of(self._noise.update(noise, first.grad_sq_global))
        known = self._times.compute.known
        if not known.any():
            return keep
        sizes = np.array(view.plan.batch_sizes)
        low, high = np.array(view.bounds).T
        rest = int(sizes[~known].sum())  # of workers never measured, which keep their sizes
        totals = _candidates(view, rest, int(low[known].sum()), int(high[known].sum()), noise_scale)
        promised_s = self._times.iteration_s(self._times.balanced_s(totals, low, high))
        promised = goodput(view, totals + rest, promised_s, noise_scale)
        present_s = self._times.iteration_s(self._times.compute.seconds(sizes)[known].max())
        present = goodput(view, sizes.sum(), present_s, noise_scale)
        best = int(promised.argmax())
        if not promised[best] > max(SWITCH * present, 0.0):
            return keep
        return Decision(tuple(self._times.shares(int(totals[best]), sizes, low, high).tolist()))


def _candidates(view: View, rest: int, smallest: int, largest: int, noise_scale: float) -> Whole:
    """Global batches less `rest`, whole numbers within the bounds of the workers that share them."""
    if math.isnan(noise_scale):
        return np.array([min(max(view.plan.global_batch - rest, smallest), largest)])
    start = min(max(initial_batch(view) - rest, smallest, 1), largest)
    return np.unique(np.geomspace(start, largest, CANDIDATES).round().astype(np.int64))


def initial_batch(view: View) -> int:
    """B0, the global batch for which the learning rate is tuned."""
    return view.reference_batch or view.plan.global_batch


def goodput(view: View, global_batch: ArrayLike, iteration_s: ArrayLike, noise_scale: float) -> Array:
    """Progress per second with iterations of `iteration_s`, in units that only `view` and `noise_scale` change.

    Any shapes. While the noise scale is not known, what counts is samples per second.
    """
    if math.isnan(noise_scale):
        return np.asarray(np.asarray(global_batch) / np.asarray(iteration_s))
    rule, reference = np.asarray(LR_RULES.index(view.lr_rule), dtype=np.int8), np.asarray(max(initial_batch(view), 1.0))
    noise, batch = np.asarray(min(noise_scale, NOISIEST)), np.maximum(np.asarray(global_batch), 1.0)
    return np.asarray(step_progress(rule, TUNING, reference, noise, batch) / np.asarray(iteration_s))


def scale_of(noise: GradientNoise) -> float:
    """V / S in samples from smoothed estimates: infinite where S is not positive, NaN where nothing is known."""
    if math.isnan(noise.variance):
        return math.nan
    return max(noise.variance, 0.0) / noise.signal if noise.signal > 0 else math.inf
