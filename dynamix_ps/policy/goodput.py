"""Goodput: the global batch of Pollux (OSDI 2021; AdaptDL), split so that unequal workers finish together (Cannikin,
arXiv 2402.05302).

    goodput(B)    = throughput(B) * efficiency(B)
    throughput(B) = B / T(B)                          T fitted on line: step_times.py
    efficiency(B) = (N + B0) / (N + B)                progress per sample relative to B0, N = V / S the noise scale

which is AdaScale's gain (V + S) / (V/s + S) over s = B / B0, with V the variance of the mean of B0 samples.
Defaults as in AdaptDL: 50 candidates spaced geometrically from B0 to the largest B that bounds allow; sizes change
only where that promises more than 1.05 times the goodput of the present ones. N is smoothed as in
metrics/noise.py, and is infinite while S is not positive (AdaptDL cuts S off at 0). Chosen by us: where no worker
can estimate N (one worker), B stays and only its split is chosen. Gain and efficiency hold under `lr_rule: adascale`.
"""

from __future__ import annotations

import math

import numpy as np

from dynamix_ps.metrics.noise import GradientNoise, SmoothedNoise
from dynamix_ps.policy.apportion import Whole
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.policy.compute_times import Array
from dynamix_ps.policy.step_times import StepTimes

CANDIDATES = 50
SWITCH = 1.05  # times the present goodput


class GoodputPolicy:
    """Chooses the global batch of largest goodput, and its split.

    Args:
        initial_batch: B0, the global batch that the learning rate was tuned for.
    """

    name = "goodput"

    def __init__(self, n_workers: int, initial_batch: int) -> None:
        self._times = StepTimes(n_workers)
        self._initial_batch = initial_batch
        self._noise = SmoothedNoise()

    def decide(self, view: View) -> Decision:
        """New sizes, or the present ones where the window is not clean or nothing is worth a change."""
        keep = Decision(view.plan.batch_sizes)
        if not view.clean:
            return keep
        self._times.observe(view)
        first = view.reported[0]
        noise_scale = scale_of(self._noise.update(GradientNoise(first.noise_variance, first.noise_signal)))
        known = self._times.compute.known
        if not known.any():
            return keep
        sizes = np.array(view.plan.batch_sizes)
        low, high = np.array(view.bounds).T
        totals = self._candidates(int(sizes[known].sum()), low[known], high[known], noise_scale)
        balanced_s = self._times.balanced_s(totals, low, high)
        rest = int(sizes[~known].sum())  # of workers never measured, which keep their sizes
        promised = self._goodput(totals + rest, balanced_s, noise_scale)
        present = self._goodput(sizes.sum(), self._times.compute.seconds(sizes)[known].max(), noise_scale)
        best = int(promised.argmax())
        if not promised[best] > SWITCH * present:
            return keep
        return Decision(tuple(self._times.shares(int(totals[best]), sizes, low, high).tolist()))

    def _candidates(self, present: int, low: Whole, high: Whole, noise_scale: float) -> Whole:
        """Totals of the known workers, whole numbers within their bounds."""
        smallest, largest = int(low.sum()), int(high.sum())
        if math.isnan(noise_scale):
            return np.array([min(max(present, smallest), largest)])
        start = min(max(self._initial_batch, smallest, 1), largest)
        return np.unique(np.geomspace(start, largest, CANDIDATES).round().astype(np.int64))

    def _goodput(self, totals: Whole, compute_s: Array, noise_scale: float) -> Array:
        return totals / self._times.iteration_s(compute_s) * efficiency(totals, self._initial_batch, noise_scale)


def efficiency(global_batch: Whole | int, initial_batch: int, noise_scale: float) -> Array:
    """Progress per sample at B relative to B0; 1 where the noise scale is infinite or not known."""
    if not math.isfinite(noise_scale):
        return np.ones_like(global_batch, dtype=np.float64)
    return np.asarray((noise_scale + initial_batch) / (noise_scale + global_batch))


def scale_of(noise: GradientNoise) -> float:
    """V / S in samples from smoothed estimates: infinite where S is not positive, NaN where nothing is known."""
    if math.isnan(noise.variance):
        return math.nan
    return max(noise.variance, 0.0) / noise.signal if noise.signal > 0 else math.inf
