"""Goodput: the global batch of Pollux (OSDI 2021; AdaptDL), split so that unequal workers finish together (Cannikin,
arXiv 2402.05302).

    goodput(B)    = throughput(B) * efficiency(B)
    throughput(B) = B / T(B)                          T is fitted while training runs (network_times.py)
    efficiency(B) = (N + B0) / (N + B)                progress per sample relative to B0, N = V / S the noise scale

This efficiency is AdaScale's gain (V + S) / (V/s + S) over s = B / B0, with V the variance of the mean of B0 samples.
The defaults are those of AdaptDL: 50 candidates are spaced geometrically from B0 to the largest B within the bounds.
Sizes change only if the new ones promise more than 1.05 times the goodput of the present ones. N is smoothed
(efficiency.py) and is infinite while S is not positive (AdaptDL cuts S off at 0).

Chosen by us: if no worker can estimate N (a job of one worker), B stays and the policy chooses only its split. The
published efficiency assumes a learning rate that follows AdaScale's gain. Under another rule it would choose a B with
which training diverges. So this policy computes progress per second under the learning-rate rule of the job
(efficiency.py). Under `adascale` this equals the published goodput up to a constant factor.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dynamix_ps.apportion import Whole
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.model.efficiency import goodput
from dynamix_ps.policy.model.network_times import StepTimes
from dynamix_ps.policy.window_arrays import WindowArrays, arrays_of

CANDIDATES = 50
SWITCH = 1.05  # times the present goodput


class GoodputPolicy:
    """Chooses the global batch with the largest goodput, and its split."""

    name = "goodput"

    def __init__(self, n_workers: int) -> None:
        self.model = ClusterModel(n_workers)
        self._times = StepTimes()

    def decide(self, view: View) -> Decision:
        """New sizes, or the present ones if the window is not clean or no candidate is enough better."""
        keep = Decision(view.plan.batch_sizes)
        if not view.clean:
            return keep
        window, model = arrays_of(view), self.model
        model.observe(window)
        self._times.observe(model)
        noise_scale, known = model.noise.estimated, model.compute.known
        if not known.any():
            return keep
        rest = model.unmeasured  # samples of workers that keep their sizes
        totals = _candidates(window, rest, int(window.low[known].sum()), int(window.high[known].sum()), noise_scale)
        coming = model.compute.coming
        compute_s = np.append(model.balanced_s(totals + rest, coming), coming.seconds(window.planned)[known].max())
        batches = np.append(totals + rest, window.global_batch)
        promised = goodput(window, batches, self._times.iteration_s(compute_s), noise_scale)
        best, present = int(promised[:-1].argmax()), promised[-1]
        if not promised[best] > max(SWITCH * present, 0.0):
            return keep
        sizes = model.shares(int(totals[best]) + rest, coming)
        return Decision(tuple(model.filled(sizes).tolist()))


def _candidates(window: WindowArrays, rest: int, smallest: int, largest: int, noise_scale: float) -> Whole:
    """Candidates for the global batch minus `rest`: whole numbers within the bounds of the workers that share them."""
    if math.isnan(noise_scale):
        return np.array([min(max(int(window.global_batch) - rest, smallest), largest)])
    return _spaced(min(max(int(window.reference_batch) - rest, smallest, 1), largest), largest)


@lru_cache(maxsize=1)
def _spaced(smallest: int, largest: int) -> Whole:
    """Whole numbers, geometrically spaced; the same in every window as long as the bounds are."""
    return np.unique(np.geomspace(smallest, largest, CANDIDATES).round().astype(np.int64))
