"""What the model of the cluster advises: the plan of the policy `model`, which `ppo` corrects. First its global batch.

The model knows each worker's computing time (compute_times.py), its network time and what computing hides of that
(network_times.py), the gradient noise scale and the learning-rate rule. Workers compute until the same time A. Those
with more exposed network time than most compute shorter by twice the difference, as half of a lead is lost: so their
chains are as long as those of the others. This costs the others less than it wins, as long as no more than half of the
speed is on the side that gives. An iteration of global batch B then lasts

    T(B) = max (A, (1 - hiding) A + network)        A = a + B / R

R: samples per second of all; a: fixed computing and what late workers give up; network: that of most. Workers at their
lower bounds may hold everybody up, and the others take the samples that workers at their upper bounds cannot take.
Training progresses by f(B) / T(B) per second (efficiency.py).

B* is the B nearest to the user's, B_0, among all B whose progress per second is close to the best:

- Above B_0, the smallest such B takes the most steps for the same samples. This is worth more than f shows, because f
  knows the progress of the next step and not where training ends.
- Below B_0, the cost of more time per sample is certain, and more progress per sample is a guess. So a B below B_0 must
  promise half as much again. Without this rule, training at 0.4 B_0 loses a third of the samples per second, and each
  sample is worth a quarter more, not half as much again as f says (benchmarks/results/attempts.md).

In the first SETTLING iterations B* is B: there are few estimates of the noise scale, and if B grows in the first twenty
iterations, training needs more of them (benchmarks/results/growth.md). In the last quarter of training B* is larger
(late_batch.py). The learned policy sees log2(B* / B), the part of T that grows with B, and f(B); it is free to
disagree.

Then the split of that batch, with which all finish together. In one window B moves by a factor of 2 at most. The rules
and the constants below are chosen by us.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import Whole, split
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.model.compute_times import Balance
from dynamix_ps.policy.model.efficiency import efficiency, finishing
from dynamix_ps.policy.model.late_batch import LateBatch
from dynamix_ps.policy.model.network_times import NetworkTimes, WindowNetworkTimes, exposed_s, halfway, typical
from dynamix_ps.policy.window_arrays import Array, WindowArrays, known_or, mean_known, ratio

ADVICE = ("advised_batch", "growing_part", "step_progress")  # log2(B* / B); B / R over T; f(B)
PRESENT = 12
CANDIDATES = np.exp2((np.arange(2 * PRESENT + 1) - PRESENT) / 4)  # of B* / B, quarters of octaves
HALF_A_STEP = 2 ** (1 / 8)  # tolerance, because candidates rarely equal B_0
WORTH = 0.05  # relative; progress per second is flat around its best, and a B this close to it is as good
SETTLING = 40  # iterations
SMALLER = 0.5  # the additional progress that a B below B_0 must promise, relative
NEAR = 1  # a good B stays if the nearest good one is at most this many candidates away
SHARED_OUT = 8  # rounds, at most, that share out what workers at their upper bounds cannot take
SMOOTHING = 0.5  # weight of the newest window in `hiding`
LARGEST_MOVE = 1.0  # |log2| of the change of B in one window: of the advice, and of advice and correction together
WORTH_A_SWITCH = 0.03  # of an iteration; while B stays, a split that promises less is not worth a switch


class Advisor:
    """Advises B* from the model of the cluster, and keeps the state that only the advice needs."""

    def __init__(self, model: ClusterModel) -> None:
        shape = model.shape
        self._times = model.compute
        self._network = NetworkTimes(*shape)
        self._hiding = np.zeros(shape[:-1])
        self._iterations = np.zeros(shape[:-1])
        self._late_batch = LateBatch(*shape[:-1])
        self._fixed_s: Array = np.zeros(shape)
        self._rates_per_s: Array = np.ones(shape)  # 0 in empty places
        self._divisors: Array = self._rates_per_s  # the same, and 1 there
        self._network_s: Array = np.zeros(shape)
        self._typical_network_s: Array = np.zeros(shape[:-1])
        self._with_late: Balance  # chains of all workers are as long

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Forget some environments. The owner of the model of the cluster restarts that model."""
        self._network.restart(which)
        self._hiding[which] = 0.0
        self._iterations[which] = 0.0
        self._late_batch.restart(which)

    def observe(self, window: WindowArrays, network: WindowNetworkTimes, noise_scale: Array) -> Array:
        """The advice after a window that the model has observed, (..., len(ADVICE)); NaN where no speed is known.

        Args:
            network: the network times in this window.
            noise_scale: (...,), samples; NaN where it is unknown.
        """
        known = self._times.known
        self._take_in(window, network)
        batch = np.maximum(window.global_batch, 1)
        growing_s = batch / self._with_late.rate_per_s
        factors = CANDIDATES.reshape(-1, *(1,) * batch.ndim)
        candidates = np.minimum(np.maximum(factors * batch, window.smallest_batch), window.largest_batch)
        duration_s = self._together_s(candidates, window)
        progress = efficiency(window, np.concatenate((candidates, batch[None])), noise_scale)
        per_s = progress[:-1] / duration_s
        smaller = candidates < window.reference_batch / HALF_A_STEP
        per_s = np.where(smaller & (per_s > 0), per_s / (1 + SMALLER), per_s)
        away = np.log2(np.maximum(candidates, 1) / np.maximum(window.reference_batch, 1))
        self._iterations = self._iterations + window.iterations
        settled = self._iterations > SETTLING
        chosen = np.where(settled, _nearest_good(per_s, np.abs(away)), PRESENT)
        best = candidates.reshape(len(CANDIDATES), -1)[chosen.reshape(-1), np.arange(chosen.size)].reshape(batch.shape)
        ends = settled & finishing(window)
        if ends.any() or self._late_batch.begun:
            best = self._late_batch.advise(ends, best, candidates, duration_s)
        advice = np.empty((*batch.shape, len(ADVICE)))
        advice[..., 0] = np.log2(np.maximum(best, 1) / batch)
        advice[..., 1] = ratio(growing_s, duration_s[PRESENT])
        advice[..., 2] = progress[-1]
        return np.where(known.any(axis=-1, keepdims=True), advice, np.nan)

    def balanced(self, totals: NDArray[np.int64]) -> Array:
        """Real-valued, positive sizes, (..., workers), with which all chains are as long."""
        return np.maximum(self._with_late.sizes(self._with_late.together_s(totals)), 1e-9)

    def longest_s(self, sizes: Array) -> Array:
        """How long an iteration with `sizes`, (..., workers), takes, (...,)."""
        halfway_s = halfway(self._fixed_s + sizes / self._divisors)
        return np.asarray((halfway_s + exposed_s(self._network_s, self._hiding, halfway_s)).max(axis=-1))

    def _take_in(self, window: WindowArrays, network: WindowNetworkTimes) -> None:
        """Follow the network, and fill in what is not known of a worker with the mean of the others.

        An empty place computes nothing, and nobody waits for it.
        """
        if not window.all_there:
            self._network.forget(~window.there)
        self._network.observe(network.network_s, window.duration_s / window.iterations)
        self._hiding = self._hiding + SMOOTHING * (network.hiding - self._hiding)
        fixed_s = self._times.coming.fixed_s
        self._fixed_s = _filled(fixed_s if self._times.all_known else np.where(self._times.known, fixed_s, np.nan))
        self._rates_per_s = _filled(self._times.coming.rates_per_s, otherwise=1.0)
        self._network_s = _filled(self._network.seconds)
        self._divisors = self._rates_per_s
        if not window.all_there:
            known = self._fixed_s, self._rates_per_s, self._network_s
            self._fixed_s, self._rates_per_s, self._network_s = np.where(window.there, known, 0.0)
            self._divisors = np.where(window.there, self._rates_per_s, 1.0)
        self._typical_network_s = typical(self._network_s, self._rates_per_s)
        self._with_late = balance_with_late(
            window.global_batch, Balance(self._fixed_s, self._rates_per_s), self._network_s, self._typical_network_s,
            self._hiding,
        )  # fmt: skip

    def _typical_exposed_s(self, until_s: Array) -> Array:
        """What computing until then, (...,), leaves of the typical network time.

        It falls for all workers alike, so it is always the same worker's.
        """
        return np.asarray(np.maximum(self._typical_network_s - self._hiding * until_s, 0.0))

    def _together_s(self, totals: Array, window: WindowArrays) -> Array:
        """How long iterations of ascending `totals`, (candidates, ...), take if they are balanced within the bounds."""
        free_s = self._with_late.together_s(totals)
        least_s = self._fixed_s + window.low / self._divisors
        until_s = np.maximum(free_s + self._overflow_s(totals, free_s, window.high), least_s.max(axis=-1))
        most_s = until_s + self._typical_exposed_s(until_s)
        halfway_s = (until_s[..., None] + least_s) / 2
        return np.maximum(most_s, (halfway_s + exposed_s(self._network_s, self._hiding, halfway_s)).max(axis=-1))

    def _overflow_s(self, totals: Array, free_s: Array, high: Whole) -> Array | float:
        """The time that bounds `high`, (..., workers), add to ascending `totals`, (candidates, ...).

        `free_s` are the times at which all workers finish together without these bounds.
        """
        largest = self._with_late.sizes(free_s[-1])  # the largest total has the largest sizes
        if not (largest > high).any():
            return 0.0
        sizes = self._with_late.sizes(free_s)
        fit = len(totals) - int((sizes > high).reshape(len(totals), -1).any(axis=-1).sum())  # the smallest totals do
        totals, sizes, together_s = totals[fit:], sizes[fit:], free_s[fit:]
        for _ in range(SHARED_OUT):
            left = np.where((sizes > high).any(axis=-1), totals - np.minimum(sizes, high).sum(axis=-1), 0.0)
            if not (left > 0).any():
                break
            below = np.where(sizes < high, self._rates_per_s, 0.0).sum(axis=-1)
            together_s = together_s + np.maximum(left, 0.0) / np.where(below > 0, below, np.inf)
            sizes = self._with_late.sizes(together_s)
        overflow_s = np.zeros(free_s.shape)
        overflow_s[fit:] = together_s - free_s[fit:]
        return overflow_s


def balance_with_late(
    total: NDArray[np.integer[Any]], balanced: Balance, network_s: Array, typical_s: Array, hiding: Array
) -> Balance:
    """`balanced`, changed so that the chains of all workers are as long, those with late networks too.

    Args:
        total: the global batch at which this holds exactly, (...,).
        network_s: (..., workers); `typical_s` and `hiding` are (...,).
    """
    until_s = balanced.together_s(total)
    most_s = np.maximum(typical_s - hiding * until_s, 0.0)
    later_s = np.maximum(exposed_s(network_s, hiding, until_s[..., None]) - most_s[..., None], 0.0)
    if not later_s.any():
        return balanced
    given_up_s = 2 * later_s / (1 - hiding[..., None])  # by late workers
    return Balance(balanced.fixed_s + given_up_s, balanced.rates_per_s)


def _nearest_good(per_s: Array, distance: Array) -> NDArray[np.int64]:
    """Index of the nearest candidate, (...,), that is close to the best; PRESENT if that is good and close."""
    most = per_s.max(axis=0)
    good = (per_s * (1 + WORTH) >= most) & (per_s > 0) | (per_s == most)
    nearest = np.where(good, distance, np.inf).argmin(axis=0)
    stays = good[PRESENT] & (np.abs(PRESENT - nearest) <= NEAR)
    return np.where(stays, PRESENT, nearest)


def _filled(values: Array, otherwise: float = 0.0) -> Array:
    """`values` with the mean of the workers' known values in place of unknown ones."""
    known = np.isfinite(values)
    return values if known.all() else np.where(known, values, mean_known(values, otherwise)[..., None])


class SplitModel(Protocol):
    """Predicts untried iterations."""

    def balanced(self, totals: Whole) -> Array:
        """Real-valued, positive sizes, (..., workers), with which all workers finish together."""
        ...

    def longest_s(self, sizes: Array) -> Array:
        """How long an iteration with these sizes, (..., workers), takes."""
        ...


def advised_batch(window: WindowArrays, advised: Array) -> Array:
    """The advised global batch, (...,): B* = B * 2^advised, at most a factor of 2 away; B if unknown."""
    away = np.minimum(np.maximum(known_or(advised), -LARGEST_MOVE), LARGEST_MOVE)
    return np.asarray(np.maximum(window.global_batch, 1) * np.exp2(away))


def total_within(window: WindowArrays, wanted: Array) -> Whole:
    """The wanted global batch, (...,), at most LARGEST_MOVE away, within the bounds of the workers."""
    now, largest = np.maximum(window.global_batch, 1), np.exp2(LARGEST_MOVE)
    moved = np.minimum(np.maximum(wanted, now / largest), now * largest)
    lowest, highest = (bounds.sum(axis=-1) for bounds in _bounds(window))
    total: Whole = np.minimum(np.maximum(np.rint(moved), lowest), highest).astype(np.int64)
    return total


def balanced_sizes(window: WindowArrays, total: Whole, model: SplitModel, factors: Array | float = 1.0) -> Whole:
    """`total` split so that by `model` all workers finish together, times each worker's factor, (..., workers).

    The present sizes stay if B stays and an iteration would hardly be shorter. Absent workers keep their size.
    """
    planned, present = window.planned, window.present
    wanted = model.balanced(total) * factors
    sizes = split(total, wanted if window.everyone else np.where(present, wanted, 0), *_bounds(window))
    same = total == window.global_batch
    if not same.any():
        return sizes
    now_s, then_s = (model.longest_s(np.where(present, those / factors, 0)) for those in (planned, sizes))
    stays = same & (then_s > (1 - WORTH_A_SWITCH) * now_s)
    inside = ((planned >= window.low) & (planned <= window.high)).all(axis=-1)
    return np.where((stays & inside)[..., None], planned, sizes)


def _bounds(window: WindowArrays) -> tuple[Whole, Whole]:
    """Smallest and largest sizes, (..., workers); absent workers keep theirs."""
    if window.everyone:
        return window.low, window.high
    there, planned = window.present, window.planned
    return np.where(there, window.low, planned), np.where(there, window.high, planned)
