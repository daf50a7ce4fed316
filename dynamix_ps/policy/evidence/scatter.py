"""How much measurements differ from window to window that should be equal. Pure.

The scatter of a value is taken from its changes between successive windows of one plan: their median, over 0.954, which
is its ratio to the standard deviation of a normally distributed value. So a lasting change of speed, which is one large
change, hardly counts as scatter. Until some changes are known, an assumption counts as much as ASSUMED of them:
RELATIVE for any window, and SHORT_S over its length for what comes in single events. All numbers are chosen by us.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from dynamix_ps.policy.window_arrays import Array

RELATIVE = 0.05  # times of windows of some seconds scatter by 4 %
SHORT_S = 0.02  # an event such as a switch between processes, times its number in a second
ASSUMED = 3  # changes
KEPT = 9  # changes, the newest
_MEDIAN_OF_CHANGE = 0.954  # 0.6745 * sqrt(2)


def assumed(duration_s: float) -> float:
    """The relative standard deviation of a time that was measured over `duration_s`, before anything is known."""
    return RELATIVE + SHORT_S / max(duration_s, 1e-6)


class Scatter:
    """The scatter of logarithms of measured values, of any shape."""

    def __init__(self) -> None:
        self._changes: deque[Array] = deque(maxlen=KEPT)
        self._before: Array | None = None

    def see(self, values: Array) -> Array:
        """Take in the logarithms of a window's values, NaN where unknown. Their changes; NaN where unknown."""
        before, self._before = self._before, values
        change = np.full(np.shape(values), np.nan) if before is None else values - before
        if before is not None:
            self._changes.append(np.abs(change))
        return change

    def restart(self) -> None:
        """The next window has another plan, so its change does not count."""
        self._before = None

    def deviation(self, prior: float) -> Array:
        """The standard deviation of one value. `prior`: what is assumed of it (`assumed`)."""
        if not self._changes:
            return np.asarray(prior)
        changes = np.array(self._changes)
        typical = np.median(np.where(np.isnan(changes), _MEDIAN_OF_CHANGE * prior, changes), axis=0)
        known = len(changes)
        measured = typical / _MEDIAN_OF_CHANGE
        return np.asarray(np.sqrt((ASSUMED * prior**2 + known * measured**2) / (ASSUMED + known)))
