"""How long an iteration takes at batch sizes that were not tried, from the windows seen so far. Pure.

The step-time model of Pollux (OSDI 2021, section 3.2; AdaptDL), with one compute model per worker
(compute_times.py):

    C = max_i t_i(b_i)                       they train in step
    T = (C^g + network^g)^(1/g)              1 <= g <= 10; 1: no overlap, 10: the network hides behind compute

As in AdaptDL, errors of log T are made small and a penalty of 1e-3 (g - 1)^2 keeps g small where the data do not
tell. Chosen by us, because clusters change: windows are forgotten, and the network follows the newest ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import ArrayLike

from dynamix_ps.apportion import Whole, split
from dynamix_ps.messages import WindowRecord
from dynamix_ps.policy.base import View
from dynamix_ps.policy.cluster_model.compute_meter import ComputeMeter
from dynamix_ps.policy.cluster_model.compute_times import (
    FORGETTING,
    LONGEST_S,
    SHORTEST_S,
    SMOOTHING,
    Array,
    ComputeTimes,
)

OVERLAPS = np.array([1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0])  # values of g that are tried
OVERLAP_PENALTY = 1e-3
_WINDOWS_KEPT = 64


class StepTimes:
    """Call `observe` with every view; views that are not clean change nothing."""

    def __init__(self, n_workers: int) -> None:
        self.compute = ComputeTimes(n_workers)
        self._meter = ComputeMeter(n_workers)
        self._steps: list[tuple[float, float]] = []  # (C, T) of the last windows
        self._overlap = 1.0
        self._network_s = 0.0

    def observe(self, view: View) -> None:
        """Learn from a window."""
        if not view.clean:
            return
        sizes, times_s = self._meter.observe(view)
        self.compute.observe(sizes, times_s)
        longest_s = times_s.max(where=np.isfinite(times_s), initial=0.0)
        step_s = typical_step_s([record for record in view.reported if record.iterations > 0])
        if longest_s > 0 and SHORTEST_S <= step_s <= LONGEST_S:
            self._fit_network(float(longest_s), step_s)

    def iteration_s(self, longest_compute_s: ArrayLike) -> Array:
        """T from C; any shape."""
        powers = np.asarray(longest_compute_s) ** self._overlap + self._network_s**self._overlap
        return np.asarray(powers ** (1 / self._overlap))

    def balanced_s(self, totals: ArrayLike, low: ArrayLike, high: ArrayLike) -> Array:
        """The compute time that all workers need when each of `totals` is split so that they finish together.

        Only workers that are known take part, of which there must be one; `low` and `high` bound their sizes, shape
        (workers,). Totals outside of the sums of the bounds count as the nearest inside. Same shape as `totals`.
        """
        known = self.compute.known
        rates = self.compute.rates_per_s[known]
        from_s = self.compute.seconds(low)[known]  # a worker's size grows between these two times
        until_s = self.compute.seconds(high)[known]
        times = np.concatenate((from_s, until_s))
        order = np.argsort(times, kind="stable")
        slopes = np.concatenate((rates, -rates))[order].cumsum()  # samples per second after each of them
        times = times[order]
        grown = np.concatenate(([0.0], (slopes[:-1] * np.diff(times)).cumsum()))
        together_s = np.interp(np.asarray(totals, dtype=np.float64), np.asarray(low)[known].sum() + grown, times)
        return np.asarray(np.maximum(together_s, from_s.max()))  # a slow worker at its lower bound holds up all

    def shares(self, total: int, planned: Whole, low: Whole, high: Whole) -> Whole:
        """That split of `total` in whole samples; workers that are not known keep what is planned, beside it."""
        known = self.compute.known
        together_s = self.balanced_s(total, low, high)
        wanted = np.clip((together_s - self.compute.fixed_s) * self.compute.rates_per_s, low, high)[known]
        inside = np.clip(total, low[known].sum(), high[known].sum())
        sizes = planned.copy()
        sizes[known] = split(inside, wanted, low[known], high[known])
        return sizes

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


def typical_step_s(records: Sequence[WindowRecord]) -> float:
    """Median over workers of the duration of an iteration; NaN if nobody tells."""
    steps_s = (record.duration_s / max(record.iterations, 1) for record in records)
    return median([step_s for step_s in steps_s if math.isfinite(step_s)] or [math.nan])


def _apart(compute: Array, total: Array, power: Array) -> Array:
    """The network time that makes T out of C, relative to T so that high powers do not underflow."""
    return np.asarray(total * np.maximum(1 - (compute / total) ** power, 0.0) ** (1 / power))
