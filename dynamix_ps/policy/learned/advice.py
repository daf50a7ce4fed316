"""What a simple model of the cluster would do: where the structured policy starts from.

The model knows each worker's computing time (compute_times.py) and the network time that nothing hides
(network_times.py), the gradient noise scale and the learning-rate rule. With all workers finishing together an
iteration of global batch B lasts

    T(B) = a + B / R        R: samples per second of all, a: fixed computing and exposed network

as long as the same network time stays hidden. Computing hides network time in proportion to itself: of what a larger B
adds to it, the part h / C (hidden over computing time now) is won back, until nothing is exposed. No iteration is
shorter than that of a slow worker at its lower bound, and what workers at their upper bounds cannot take, the others
must. Training progresses by f(B) / T(B) per second (efficiency.py). The learned policy sees B*, as log2(B* / B),
the part of T that grows with B, and f(B); it is free to disagree. B* is, of
all B with which that is nearly as large as it can be, the one nearest to the user's, B_0: beyond, the smallest takes
the most steps for the same samples, which is worth more than f tells, as it knows the progress of the next step and not
where training ends; below, more time per sample is certain, and more progress per sample is a guess, so a B below B_0
must promise half as much again: for 0.4 B_0 the model gave up a third of the samples per second, as if each were worth
half as much again, and real training made a quarter (benchmarks/results/attempts.md).

For the first SETTLING windows B* is B: estimates of the noise scale are few, and where B grows in the first twenty
iterations, training takes more of them (benchmarks/results/growth.md). Chosen by us. For the last quarter of training
B* is larger (late_batch.py).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import Whole
from dynamix_ps.policy.cluster_model.compute_times import balance
from dynamix_ps.policy.cluster_model.efficiency import efficiency, finishing
from dynamix_ps.policy.cluster_model.late_batch import LateBatch
from dynamix_ps.policy.cluster_model.model import ClusterModel
from dynamix_ps.policy.cluster_model.network_times import NetworkTimes
from dynamix_ps.policy.learned.state import State
from dynamix_ps.policy.window_arrays import Array, known_or, mean_known, ratio

ADVICE = ("advised_batch", "growing_part", "step_progress")  # log2(B* / B); B / R over T; f(B)
PRESENT = 12
CANDIDATES = np.exp2((np.arange(2 * PRESENT + 1) - PRESENT) / 4)  # of B* / B, quarters of octaves
HALF_A_STEP = 2 ** (1 / 8)  # candidates seldom hit B_0
WORTH = 0.05  # progress per second is flat around its best; what comes so near is as good (chosen by us)
SETTLING = 4  # windows, some 35 iterations of a window of ten (chosen by us)
SMALLER = 0.5  # what a B below B_0 must promise in addition (chosen by us)
NEAR = 1  # a B that is good enough stays unless one nearer to B_0 by more candidates would do (chosen by us)
SHARED_OUT = 8  # times at most, what workers at their upper bounds cannot take is shared out among the others
SMOOTHING = 0.5  # weight of the newest window in h / C (chosen by us)


class Advisor:
    """Remembers, beside the model of the cluster, what only advice needs."""

    def __init__(self, model: ClusterModel) -> None:
        shape = model.shape
        self._times = model.compute
        self._exposed = NetworkTimes(*shape)
        self._hiding = np.zeros(shape[:-1])  # h / C
        self._windows = np.zeros(shape[:-1])
        self._late_batch = LateBatch(*shape[:-1])
        self._fixed_s: Array = np.zeros(shape)
        self._rates_per_s: Array = np.ones(shape)

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Forget some environments. Whoever observes with the model of the cluster restarts that."""
        self._exposed.restart(which)
        self._hiding[which] = 0.0
        self._windows[which] = 0.0
        self._late_batch.restart(which)

    def observe(self, state: State) -> Array:
        """Take in a window that the model has observed. The advice, (..., len(ADVICE)), NaN where nothing is known."""
        window = state.window
        known = self._times.known
        self._follow_hiding(state)
        self._exposed.observe(state.exposed_s, window.duration_s / window.iterations)
        exposed_s = self._exposed.seconds
        mean_exposed_s = mean_known(exposed_s)
        self._fixed_s = _filled(np.where(known, self._times.fixed_s, np.nan)) + _filled(exposed_s)
        self._rates_per_s = _filled(self._times.rates_per_s, otherwise=1.0)

        batch = np.maximum(window.global_batch, 1)
        rate_per_s = self._rates_per_s.sum(axis=-1)
        constant_s = (self._fixed_s * self._rates_per_s).sum(axis=-1) / rate_per_s
        growing_s = batch / rate_per_s
        factors = CANDIDATES.reshape(-1, *(1,) * batch.ndim)
        candidates = np.clip(factors * batch, window.low.sum(axis=-1), window.high.sum(axis=-1))
        longer_s = (candidates - batch) / rate_per_s * (1 - self._hiding)
        alone_s = constant_s - mean_exposed_s + candidates / rate_per_s
        pinned_s = (self._fixed_s + window.low / self._rates_per_s).max(axis=-1)
        balanced_s = np.maximum(constant_s + growing_s + longer_s, alone_s) + self._overflow_s(candidates, window.high)
        duration_s = np.maximum(balanced_s, pinned_s)
        progress = efficiency(window, np.concatenate((candidates, batch[None])), state.noise_scale)
        per_s = progress[:-1] / duration_s
        smaller = candidates < window.reference_batch / HALF_A_STEP
        per_s = np.where(smaller & (per_s > 0), per_s / (1 + SMALLER), per_s)
        away = np.log2(np.maximum(candidates, 1) / np.maximum(window.reference_batch, 1))
        self._windows = self._windows + 1
        settled = self._windows > SETTLING
        chosen = np.where(settled, _nearest_good(per_s, np.abs(away)), PRESENT)
        best = candidates.reshape(len(CANDIDATES), -1)[chosen.reshape(-1), np.arange(chosen.size)].reshape(batch.shape)
        ends = settled & finishing(window)
        if ends.any() or self._late_batch.begun:
            best = self._late_batch.advise(ends, best, candidates, duration_s)
        advice = np.empty((*batch.shape, len(ADVICE)))
        advice[..., 0] = np.log2(np.maximum(best, 1) / batch)
        advice[..., 1] = ratio(growing_s, constant_s + growing_s)
        advice[..., 2] = progress[-1]
        return np.where(known.any(axis=-1, keepdims=True), advice, np.nan)

    def balanced(self, totals: NDArray[np.int64]) -> Array:
        """Real-valued sizes, (..., workers), with which all would finish together; positive."""
        _, sizes = balance(totals, self._fixed_s, self._rates_per_s)
        return np.maximum(sizes, 1e-9)

    def longest_s(self, sizes: Array) -> Array:
        """How long an iteration takes by whoever finishes last, (...,), with `sizes`, (..., workers)."""
        return np.asarray((self._fixed_s + sizes / self._rates_per_s).max(axis=-1))

    def _overflow_s(self, totals: Array, high: Whole) -> Array:
        """How much longer totals, ascending (candidates, ...), take than without bounds `high`, (..., workers)."""
        _, largest = balance(totals[-1], self._fixed_s, self._rates_per_s)  # nobody has more with any other of them
        if not (largest > high).any():
            return np.zeros(totals.shape)
        free_s, sizes = balance(totals, self._fixed_s, self._rates_per_s)
        together_s = free_s
        for _ in range(SHARED_OUT):
            left = np.where((sizes > high).any(axis=-1), totals - np.minimum(sizes, high).sum(axis=-1), 0.0)
            if not (left > 0).any():
                break
            below = np.where(sizes < high, self._rates_per_s, 0.0).sum(axis=-1)
            together_s = together_s + np.maximum(left, 0.0) / np.where(below > 0, below, np.inf)
            sizes = np.maximum((together_s[..., None] - self._fixed_s) * self._rates_per_s, 0.0)
        return np.asarray(together_s - free_s)

    def _follow_hiding(self, state: State) -> None:
        computing_s = known_or(state.compute_s).max(axis=-1)
        hiding = np.clip(known_or(ratio(state.hidden_s, computing_s)), 0.0, 1.0)
        self._hiding = self._hiding + SMOOTHING * (hiding - self._hiding)


def _nearest_good(per_s: Array, distance: Array) -> NDArray[np.int64]:
    """Of (candidates, ...) the nearest one that is nearly as good as the best; the present one where that is near."""
    most = per_s.max(axis=0)
    good = (per_s * (1 + WORTH) >= most) & (per_s > 0) | (per_s == most)
    nearest = np.where(good, distance, np.inf).argmin(axis=0)
    stays = good[PRESENT] & (np.abs(PRESENT - nearest) <= NEAR)
    return np.where(stays, PRESENT, nearest)


def _filled(values: Array, otherwise: float = 0.0) -> Array:
    """Unknown values are the mean of the workers' known ones."""
    known = np.isfinite(values)
    return values if known.all() else np.where(known, values, mean_known(values, otherwise)[..., None])
