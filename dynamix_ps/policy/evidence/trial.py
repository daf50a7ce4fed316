"""Whether a new plan has made training slower. Pure.

A plan is on trial while at most KEPT windows of it are known. It is worse if its samples per second are below those of
the plan before by more than the scatter of both explains (SURE standard deviations), and if the sizes before would be
faster now, by what is known of the workers' computing. Without the second condition a machine that becomes busy would
look like a bad plan.

A smaller global batch takes more steps for the same samples, and costs samples per second on purpose. It is worse only
if it is slower than the first sizes as well. All of this is chosen by us.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from dynamix_ps.policy.evidence.claims import KEPT, SURE
from dynamix_ps.policy.evidence.scatter import Scatter, assumed

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """Windows of one plan."""

    sizes: Sizes
    log_rate: float  # mean logarithm of samples per second
    windows: int


class Trial:
    """Follows the samples per second of all plans, one after the other."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=KEPT)
        self._sizes: Sizes = ()
        self._first: Measured | None = None
        self._before: Measured | None = None  # of the plan that the present one has replaced
        self._scatter = Scatter()

    def see(self, sizes: Sizes, samples_per_s: float, on_trial: bool) -> None:
        """A window of training with `sizes`. `on_trial`: sizes that differ from those before are a policy's choice."""
        if sizes != self._sizes:
            known = self._measured if self._rates else None
            self._first = self._first or known
            self._before = known if on_trial else None
            self._sizes = sizes
            self._rates.clear()
            self._scatter.restart()
        if samples_per_s > 0:
            rate = math.log(samples_per_s)
            self._rates.append(rate)
            self._scatter.see(np.array(rate))

    @property
    def _measured(self) -> Measured:
        return Measured(self._sizes, fmean(self._rates), len(self._rates))

    def worse_than(self, duration_s: float, would_be: Callable[[Sizes], float]) -> Measured | None:
        """The plan before, if the present one is worse; ends the trial then.

        Args:
            duration_s: of the newest window.
            would_be: samples per second with other sizes, as the workers are now; NaN: unknown.
        """
        before = self._before
        if before is None or not self._rates or len(self._rates) == KEPT:
            return None
        level = before.log_rate
        if sum(self._sizes) < sum(before.sizes) and self._first is not None:
            level = min(level, self._first.log_rate)
        now = self._measured
        deviation = float(self._scatter.deviation(assumed(duration_s))) * math.sqrt(
            1 / now.windows + 1 / before.windows
        )
        if now.log_rate > level - SURE * deviation or not would_be(before.sizes) > math.exp(now.log_rate):
            return None
        self._before = None
        return before
