"""Computing times of the workers for `proportional` and `pid`, and when these two may change sizes.

Times scatter by some 4 % from window to window. If each change of sizes is answered to within a dead-band of 5 % from
the few windows since the last one, some worker of eight leaves the dead-band in nearly every window, and sizes never
come to rest. So, chosen by us:

- A line per worker collects the windows of all plans (model/compute_times.py). Until sizes have differed, a
  time counts as proportional to the size, as published. A change of speed beyond JUMP is followed at once.
- A plan stays for FIRST_WAIT windows after the first change, and twice as long after each further one, up to
  LONGEST_WAIT. So the corrections, which become smaller, rest on more and more windows. When the speed of a worker
  jumps, or workers come or go, the next change may come at once, and waiting begins anew.
"""

from __future__ import annotations

import numpy as np

from dynamix_ps.apportion import largest_change
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.policy.model.compute_times import Array, ComputeMeter, ComputeTimes, balance
from dynamix_ps.policy.window_arrays import arrays_of

DEAD_BAND = 0.05  # if no worker's size would change by more (relative), all stay; as published
JUMP = 0.3  # a relative change of speed that neither scatter nor a line not yet known well explains
FIRST_WAIT, LONGEST_WAIT = 2, 16  # windows


class SteadyTimes:
    """`sizes` and `times_s` are the last window's, per iteration; NaN where a worker was not measured."""

    sizes: Array
    times_s: Array

    def __init__(self, n_workers: int) -> None:
        self._meter = ComputeMeter(n_workers)
        self._lines = ComputeTimes(n_workers, jump=JUMP)
        self._first_sizes: tuple[int, ...] | None = None
        self._sizes_vary = False
        self._planned: tuple[int, ...] | None = None
        self.windows = 0  # clean ones under the newest sizes
        self._wait = 0  # windows that this plan stays
        self._there: list[bool] = []  # who was, in the last window

    @property
    def known(self) -> list[int]:
        """Ranks of the workers that are there and were ever measured."""
        return [int(rank) for rank in np.flatnonzero(self._lines.known)]

    def observe(self, view: View) -> None:
        """Take in a clean window. Call once per window, in order."""
        if view.plan.batch_sizes != self._planned:
            if self._planned is not None:
                self._wait = min(max(2 * self._wait, FIRST_WAIT), LONGEST_WAIT)
            self._planned, self.windows = view.plan.batch_sizes, 0
        self._first_sizes = self._first_sizes or view.plan.batch_sizes
        self._sizes_vary |= view.plan.batch_sizes != self._first_sizes
        window = arrays_of(view)
        if not window.all_there:  # another machine may compute there later
            self._meter.forget(~window.there)
            self._lines.forget(~window.there)
        self.sizes, self.times_s = self._meter.per_iteration(window)
        self._lines.observe(self.sizes, self.times_s)
        self.windows += 1
        there = window.there.tolist()
        if self._lines.jumped.any() or there != self._there:
            self._wait = 0
        self._there = there

    def seconds(self, sizes: tuple[int, ...]) -> Array:
        """Smoothed computing seconds per iteration at these sizes; NaN for workers never measured."""
        return self._lines.now.seconds(sizes)

    def sizes_after(self, together_s: float, sizes: tuple[int, ...]) -> list[float]:
        """The sizes, as real numbers, at which each of the known workers computes for `together_s`."""
        fixed_s, rates_per_s = self._known_lines(sizes)
        return [float(size) for size in np.maximum((together_s - fixed_s) * rates_per_s, 0.0)]

    def equal_times(self, total: int, sizes: tuple[int, ...]) -> list[float]:
        """The split of `total`, in real numbers, at which the known workers finish together; they have `sizes` now."""
        return [float(size) for size in balance(total, *self._known_lines(sizes))[1]] if self.known else []

    def _known_lines(self, sizes: tuple[int, ...]) -> tuple[Array, Array]:
        """Fixed seconds, and samples per second beyond them, of the known workers."""
        known = self.known
        if self._sizes_vary:
            return self._lines.now.fixed_s[known], self._lines.now.rates_per_s[known]
        at_least_one = np.maximum(sizes, 1)
        return np.zeros(len(known)), (at_least_one / self._lines.now.seconds(at_least_one))[known]

    def decide(self, view: View, wanted: tuple[int, ...]) -> Decision:
        """`wanted`, or the present sizes if too little would change or the plan has to stay."""
        sizes = view.plan.batch_sizes
        may_change = self.windows >= self._wait and largest_change(sizes, wanted) > DEAD_BAND
        return Decision(wanted if may_change else sizes)
