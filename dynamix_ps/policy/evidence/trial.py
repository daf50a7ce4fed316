"""Whether a new plan has made training slower. Pure.

A plan is on trial while at most KEPT windows of it are known. A plan is worse if its samples per second are below those
of the plan before by more than the scatter of both explains (SURE standard deviations). In addition, the workers'
measured computing times must show that the earlier sizes would be faster now, or the loss must have lasted for LASTING
windows: at first, a machine that becomes busy looks like a bad plan.

A smaller global batch takes more steps for the same samples, and costs samples per second on purpose. Such a plan is
worse only if it is also slower than the first sizes. All of this is chosen by us.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from dynamix_ps.policy.evidence.claims import KEPT
from dynamix_ps.policy.evidence.measurements import SURE, Scatter, assumed

LASTING = 3  # windows
Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """Windows of one plan."""

    sizes: Sizes
    log_rate: float  # mean logarithm of samples per second
    windows: int


class Trial:
    """Follows the samples per second of all plans, one after the other."""

    def __init__(self, first_sizes: Sizes) -> None:
        self._rates: deque[float] = deque(maxlen=KEPT)
        self._sizes = self.first_sizes = first_sizes
        self._first: Measured | None = None
        self._before: Measured | None = None  # of the plan that the present one has replaced
        self._scatter = Scatter()

    def see(self, sizes: Sizes, samples_per_s: float, on_trial: bool, jumped: bool) -> None:
        """A window of training with `sizes`.

        Args:
            on_trial: sizes that differ from those before are a policy's choice.
            jumped: the speed of a worker has jumped. From a plan's second window on, the plan is not the reason, and
                its trial ends.
        """
        if jumped and self._rates and sizes == self._sizes:
            self._before = None
        if sizes != self._sizes:
            self._before = self._measured if self._rates and on_trial else None
            self._sizes = sizes
            self._rates.clear()
        if samples_per_s > 0:
            rate = math.log(samples_per_s)
            if self._rates:
                self._scatter.see(np.array(rate - self._rates[-1]))
            self._rates.append(rate)
            if sizes == self.first_sizes:
                self._first = self._measured

    @property
    def _measured(self) -> Measured:
        return Measured(self._sizes, fmean(self._rates), len(self._rates))

    def worse_than(self, duration_s: float, would_be: Callable[[Sizes], float]) -> Measured | None:
        """The plan before, if the present one is worse; ends the trial then.

        Args:
            duration_s: of the newest window.
            would_be: samples per second with other sizes, as the workers are now; NaN: unknown.
        """
        before, count = self._before, len(self._rates)
        if before is None or not 0 < count < KEPT:
            return None
        level = before.log_rate
        if sum(self._sizes) < sum(before.sizes):
            level = min(level, self._first.log_rate if self._first else math.inf)
        now = self._measured
        deviation = self._deviation(duration_s) * math.sqrt(1 / count + 1 / before.windows)
        if now.log_rate > level - SURE * deviation:
            return None
        if count < LASTING and not would_be(before.sizes) > math.exp(now.log_rate + deviation):
            return None
        self._before = None
        return before

    def gains(self, duration_s: float) -> bool:
        """Whether the present plan is faster than the one before; True if there is none to compare it with."""
        before, count = self._before, len(self._rates)
        if before is None or not count:
            return True
        deviation = self._deviation(duration_s) * math.sqrt(1 / count + 1 / before.windows)
        return self._measured.log_rate > before.log_rate + deviation

    def below_first(self, samples_per_s: float, duration_s: float) -> bool:
        """Whether so many samples per second are fewer than with the first sizes, by a standard deviation or more.

        False where the first sizes were not measured.
        """
        if self._first is None or not samples_per_s > 0:
            return False
        return math.log(samples_per_s) < self._first.log_rate - self._deviation(duration_s)

    def _deviation(self, duration_s: float) -> float:
        """Of the logarithm of the samples per second in a window of `duration_s`."""
        return float(self._scatter.deviation(assumed(duration_s)))
