"""How fast every worker computes, remembered over windows: the weights of a throughput-proportional split."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.policy.window_arrays import Array

JUMP = 0.15  # a relative change beyond this is a new speed, not noise (chosen by us)
SMOOTHING = 0.3  # weight of the newest window otherwise (chosen by us)


class Speeds:
    """Samples per second of computing, shape (..., workers): smoothed while it is steady, at once when it jumps."""

    def __init__(self, *shape: int) -> None:
        self._per_s = np.full(shape, np.nan)

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Forget some environments."""
        self._per_s[which] = np.nan

    def update(self, measured_per_s: Array) -> None:
        """Take in a window; NaN or what is not positive changes nothing."""
        known = np.isfinite(measured_per_s) & (measured_per_s > 0)
        measured = np.where(known, measured_per_s, 1.0)
        before = np.where(np.isfinite(self._per_s), self._per_s, measured)
        steady = np.abs(measured - before) <= JUMP * before
        after = np.where(steady, before + SMOOTHING * (measured - before), measured)
        self._per_s = np.where(known, after, self._per_s)

    @property
    def weights(self) -> Array:
        """Finite and positive: a worker that was never measured counts as the mean of the others, or as 1."""
        known = np.isfinite(self._per_s)
        total = np.where(known, self._per_s, 0.0).sum(axis=-1, keepdims=True)
        mean = np.where(total > 0, total / np.maximum(known.sum(axis=-1, keepdims=True), 1), 1.0)
        return np.where(known, self._per_s, mean)
