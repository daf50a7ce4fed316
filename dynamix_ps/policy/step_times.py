"""How long an iteration takes at batch sizes that were not tried, from the windows seen so far. Pure.

The step-time model of Pollux (OSDI 2021, section 3.2; AdaptDL), with one compute model per worker as in Cannikin
(arXiv 2402.05302):

    t_i(b) = level_i * (fixed_i + per_sample_i * b)         compute time of worker i
    C      = max_i t_i(b_i)                                 they train in step
    T      = (C^g + network^g)^(1/g),  1 <= g <= 10         g = 1: no overlap, 10: the network hides behind compute

As in AdaptDL: relative errors are fitted, a worker that was seen at one size only gets half of its time as
fixed part, and a penalty of 1e-3 (g - 1)^2 keeps g small where the data do not tell. Chosen by us, because clusters
change: windows are forgotten (FORGETTING), level_i and the network follow the newest ones (SMOOTHING), and level_i
does so at once where it jumps (speeds.JUMP).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dynamix_ps.policy.base import View
from dynamix_ps.policy.speeds import JUMP

Array = NDArray[np.float64]

SMOOTHING = 0.5  # weight of the newest window in what follows quickly
FORGETTING = 0.97  # weight of a window, one window later, in what is learned slowly
SAME_SIZE = 0.05  # relative spread of sizes below which a worker was seen at one size only
SHORTEST_S, LONGEST_S = 1e-6, 1e6  # other times than between these were not measured
OVERLAPS = np.array([1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0])  # values of g that are tried
OVERLAP_PENALTY = 1e-3
_WINDOWS_KEPT = 64  # for g


class StepTimes:
    """Call `observe` with every view; views that are not clean change nothing."""

    def __init__(self, n_workers: int) -> None:
        self._sums = np.zeros((5, n_workers))  # of w, w b, w b^2, w t, w b t with w = 1 / t^2
        self._level = np.ones(n_workers)
        self._fixed_s = np.zeros(n_workers)
        self._per_sample_s = np.full(n_workers, np.nan)
        self._steps: list[tuple[float, float]] = []  # (C, T) of the last windows
        self._overlap = 1.0
        self._network_s = 0.0

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which workers were ever measured; shape (workers,)."""
        return np.asarray(np.isfinite(self._per_sample_s))

    def observe(self, view: View) -> None:
        """Learn from a window."""
        if not view.clean:
            return
        ranks, sizes, compute_s, step_s = _measured(view)
        if not len(ranks):
            return
        self._fit_compute(ranks, sizes, compute_s)
        if np.isfinite(step_s):
            self._fit_network(float(compute_s.max()), step_s)

    def compute_s(self, sizes: ArrayLike) -> Array:
        """Seconds of computing per iteration; `sizes` and result (..., workers), NaN for workers never measured."""
        return np.asarray(self._level * (self._fixed_s + self._per_sample_s * np.asarray(sizes)))

    def iteration_s(self, longest_compute_s: ArrayLike) -> Array:
        """T from C; any shape."""
        powers = np.asarray(longest_compute_s) ** self._overlap + self._network_s**self._overlap
        return np.asarray(powers ** (1 / self._overlap))

    def balanced_s(self, totals: ArrayLike, low: ArrayLike, high: ArrayLike) -> Array:
        """The compute time that all workers need when each of `totals` is split so that they finish together.

        Only workers that are `known` take part; `low` and `high` bound their sizes, shape (workers,). Totals outside
        of the sums of the bounds count as the nearest inside. Same shape as `totals`.
        """
        known = self.known
        rates = 1 / (self._level * self._per_sample_s)[known]
        from_s = self.compute_s(low)[known]  # a worker's size grows between these two times
        until_s = self.compute_s(high)[known]
        times = np.concatenate((from_s, until_s))
        order = np.argsort(times, kind="stable")
        slopes = np.concatenate((rates, -rates))[order].cumsum()  # samples per second after each of them
        times = times[order]
        grown = np.concatenate(([0.0], (slopes[:-1] * np.diff(times)).cumsum()))
        together_s = np.interp(np.asarray(totals, dtype=np.float64), np.asarray(low)[known].sum() + grown, times)
        return np.asarray(np.maximum(together_s, from_s.max()))  # a slow worker at its lower bound holds up all

    def balanced_sizes(self, balanced_s: float) -> Array:
        """Real-valued sizes at which every known worker computes for `balanced_s`, bounds apart; at least 0."""
        return np.asarray(np.maximum((balanced_s / self._level - self._fixed_s) / self._per_sample_s, 0.0))

    def _fit_compute(self, ranks: NDArray[np.int64], sizes: Array, times_s: Array) -> None:
        weights = times_s**-2
        fresh = np.stack((weights, weights * sizes, weights * sizes**2, weights * times_s, weights * sizes * times_s))
        self._sums[:, ranks] = FORGETTING * self._sums[:, ranks] + fresh
        first = ~self.known[ranks]
        self._fixed_s[ranks], self._per_sample_s[ranks] = _lines(self._sums[:, ranks])
        seen = times_s / (self._fixed_s[ranks] + self._per_sample_s[ranks] * sizes)
        at_once = first | (np.abs(seen / self._level[ranks] - 1) > JUMP)
        self._level[ranks] += np.where(at_once, 1.0, SMOOTHING) * (seen - self._level[ranks])

    def _fit_network(self, longest_s: float, step_s: float) -> None:
        self._steps = [*self._steps[1 - _WINDOWS_KEPT :], (longest_s, max(step_s, longest_s))]
        compute, total = np.array(self._steps).T
        powers = OVERLAPS[:, None]
        network = _apart(compute, total, powers)  # (powers, windows)
        weights = FORGETTING ** np.arange(len(total))[::-1]
        mean = (network * weights).sum(axis=1, keepdims=True) / weights.sum()
        errors = np.log((compute**powers + mean**powers) ** (1 / powers) / total)
        cost = (errors**2 * weights).sum(axis=1) / weights.sum() + OVERLAP_PENALTY * (OVERLAPS - 1) ** 2
        best = int(cost.argmin())
        self._overlap = float(OVERLAPS[best])
        recent = (1 - SMOOTHING) ** np.arange(len(total))[::-1]
        self._network_s = float((network[best] * recent).sum() / recent.sum())


def _measured(view: View) -> tuple[NDArray[np.int64], Array, Array, float]:
    """Ranks with a usable compute time, their b and t, and the duration of an iteration (NaN: unknown)."""
    found = [
        (record.rank, record.samples / record.iterations, record.compute_s / record.iterations)
        for record in view.reported
        if record.iterations > 0 and record.samples > 0 and SHORTEST_S <= record.compute_s <= LONGEST_S
    ]
    steps = [
        record.duration_s / record.iterations
        for record in view.reported
        if record.iterations > 0 and SHORTEST_S <= record.duration_s <= LONGEST_S
    ]
    ranks = np.array([rank for rank, _, _ in found], dtype=np.int64)
    return (
        ranks,
        np.array([size for _, size, _ in found]),
        np.array([time_s for _, _, time_s in found]),
        float(np.median(steps)) if steps else np.nan,
    )


def _lines(sums: Array) -> tuple[Array, Array]:
    """(fixed, per sample) of every worker, both at least 0, by least squares; see the head of the file."""
    weight, size, size_sq, time, product = sums
    mean_size, mean_time = size / weight, time / weight
    spread = np.maximum(size_sq / weight - mean_size**2, 0.0)
    told = spread > (SAME_SIZE * mean_size) ** 2
    slope = (product / weight - mean_size * mean_time) / np.where(told, spread, 1.0)
    fixed = mean_time - slope * mean_size
    half = ~told | (slope <= 0)
    proportional = ~half & (fixed < 0)
    slope = np.where(half, mean_time / mean_size / 2, np.where(proportional, product / size_sq, slope))
    return np.where(half, mean_time / 2, np.where(proportional, 0.0, fixed)), slope


def _apart(compute: Array, total: Array, power: Array) -> Array:
    """The network time that makes T out of C, relative to T so that high powers do not underflow."""
    return np.asarray(total * np.maximum(1 - (compute / total) ** power, 0.0) ** (1 / power))
