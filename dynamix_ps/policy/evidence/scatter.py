"""How much measurements differ from window to window that should be equal. Pure.

The scatter of a value is taken from differences between successive windows: their median, over 0.954, which is its
ratio to the standard deviation of a normally distributed value. So a lasting change of speed, which is one large
difference, hardly counts as scatter. Until some differences are known, an assumption counts as much as ASSUMED of them:
RELATIVE for any window, and SHORT_S over its length for what comes in single events. All numbers are chosen by us.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from dynamix_ps.policy.window_arrays import Array

RELATIVE = 0.05  # times of windows of some seconds scatter by 4 %
SHORT_S = 0.05  # single events: where processes share cores, workers differ by as much over a second
ASSUMED = 3  # differences
KEPT = 9  # differences, the newest
LARGEST = 2.0  # times the assumption; what differs by more is no scatter: speeds change all the time
_MEDIAN_OF_DIFFERENCE = 0.954  # 0.6745 * sqrt(2)


def assumed(duration_s: float) -> float:
    """The relative standard deviation of a time that was measured over `duration_s`, before anything is known."""
    return RELATIVE + SHORT_S / max(duration_s, 1e-6)


class Scatter:
    """The scatter of logarithms of measured values, of any shape, from differences of two that should be equal."""

    def __init__(self) -> None:
        self._differences: deque[Array] = deque(maxlen=KEPT)

    def see(self, difference: Array) -> None:
        """Take in a difference of two values, NaN where unknown."""
        self._differences.append(np.abs(difference))

    def deviation(self, prior: float) -> Array:
        """The standard deviation of one value. `prior`: what is assumed of it (`assumed`)."""
        if not self._differences:
            return np.asarray(prior)
        differences = np.array(self._differences)
        typical = np.median(np.where(np.isnan(differences), _MEDIAN_OF_DIFFERENCE * prior, differences), axis=0)
        known = len(differences)
        measured = typical / _MEDIAN_OF_DIFFERENCE
        found = np.sqrt((ASSUMED * prior**2 + known * measured**2) / (ASSUMED + known))
        return np.asarray(np.minimum(found, LARGEST * prior))
