"""How fast workers compute, and how much that scatters. Pure."""

from __future__ import annotations

import math

import numpy as np

from dynamix_ps.policy.base import View
from dynamix_ps.policy.evidence.claims import SURE
from dynamix_ps.policy.evidence.joined_windows import trained_s
from dynamix_ps.policy.evidence.scatter import Scatter, assumed
from dynamix_ps.policy.model.compute_times import JUMP, SMOOTHING, ComputeMeter, ComputeTimes
from dynamix_ps.policy.window_arrays import Array, arrays_of

# a difference of two times has twice the variance of one; that of a time and a smoothed mean of earlier ones has less
AS_DIFFERENCE = math.sqrt(2 / (1 + SMOOTHING / (2 - SMOOTHING)))


class ComputeSpeeds:
    """Computing times of all workers, compared with what windows before let expect."""

    def __init__(self, n_workers: int) -> None:
        self._meter, self._lines = ComputeMeter(n_workers), ComputeTimes(n_workers)
        self._scatter = Scatter()

    def observe(self, view: View) -> bool:
        """Take in a window. Returns whether a worker's speed has jumped."""
        window = arrays_of(view)
        if not window.all_there:  # another machine may compute there later
            self._meter.forget(~window.there)
            self._lines.forget(~window.there)
        sizes, times_s = self._meter.per_iteration(window)
        surprise = _relative(times_s / self._lines.coming.seconds(sizes))
        self._lines.observe(sizes, times_s)
        beyond = np.maximum(SURE * self.deviation(view), JUMP)
        self._scatter.see(AS_DIFFERENCE * surprise)
        return bool((np.abs(surprise) > beyond).any())

    def deviation(self, view: View) -> Array:
        """The standard deviation of the logarithm of each worker's time in a window such as this one."""
        return self._scatter.deviation(assumed(trained_s(view)))

    def lateness(self, view: View) -> Array:
        """By how many assumed standard deviations each worker computes longer than most, in a window by itself."""
        return _relative(self._meter.per_iteration(arrays_of(view))[1]) / assumed(trained_s(view))

    def rate_per_s(self, view: View, sizes: tuple[int, ...]) -> float:
        """Samples per second with these sizes: computing takes as long as its lines say, the rest as long as in `view`.

        NaN where no speed is known.
        """
        now_s, then_s = self._lines.now.seconds(view.plan.batch_sizes), self._lines.now.seconds(sizes)
        known = np.isfinite(now_s)
        if not known.any():
            return math.nan
        iteration_s = trained_s(view) / view.reported[0].iterations
        return sum(sizes) / max(iteration_s + float(then_s[known].max() - now_s[known].max()), 1e-9)


def _relative(times_s: Array) -> Array:
    """Logarithms of times over their geometric mean: what a machine that serves all workers does to all is left out."""
    logs = np.log(times_s)
    known = np.isfinite(logs)
    return logs - (logs[known].mean() if known.any() else 0.0)
