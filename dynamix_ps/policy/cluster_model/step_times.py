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
from collections import deque
from statistics import median

import numpy as np
from numpy.typing import ArrayLike

from dynamix_ps.policy.cluster_model.compute_times import (
    FORGETTING,
    LONGEST_S,
    SHORTEST_S,
    SMOOTHING,
    Array,
)
from dynamix_ps.policy.cluster_model.model import ClusterModel
from dynamix_ps.policy.window_arrays import WindowArrays

OVERLAPS = np.array([1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0])  # values of g that are tried
OVERLAP_PENALTY = 1e-3
_WINDOWS_KEPT = 64


class StepTimes:
    """T from C of a live cluster. The fit is made when it is first asked for after a window."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float]] = deque(maxlen=_WINDOWS_KEPT)  # (C, T) of the last windows
        self._fitted = True
        self._overlap, self._network_s = 1.0, 0.0
        self.step_s = math.nan  # of the last window, the median over the workers

    def observe(self, model: ClusterModel) -> None:
        """Learn from the window that the model has just observed."""
        times_s = model.known_compute_s
        longest_s = float(times_s.max(where=np.isfinite(times_s), initial=0.0))
        self.step_s = step_s = typical_step_s(model.window)
        if longest_s > 0 and SHORTEST_S <= step_s <= LONGEST_S:
            self._steps.append((longest_s, max(step_s, longest_s)))
            self._fitted = False

    def iteration_s(self, longest_compute_s: ArrayLike) -> Array:
        """T from C; any shape."""
        if not self._fitted:
            self._fit()
        powers = np.asarray(longest_compute_s) ** self._overlap + self._network_s**self._overlap
        return np.asarray(powers ** (1 / self._overlap))

    def _fit(self) -> None:
        compute, total = np.array(self._steps).T
        powers = OVERLAPS[:, None]
        network = _apart(compute, total, powers)  # (powers, windows)
        weights = FORGETTING ** np.arange(len(total))[::-1]
        mean = (network * weights).sum(axis=1, keepdims=True) / weights.sum()
        errors = np.log((compute**powers + mean**powers) ** (1 / powers) / total)
        cost = (errors**2 * weights).sum(axis=1) / weights.sum() + OVERLAP_PENALTY * (OVERLAPS - 1) ** 2
        best = int(cost.argmin())
        recent = (1 - SMOOTHING) ** np.arange(len(total))[::-1]
        self._overlap = float(OVERLAPS[best])
        self._network_s = float((network[best] * recent).sum() / recent.sum())
        self._fitted = True


def typical_step_s(window: WindowArrays) -> float:
    """Median over the workers of a live cluster of the duration of an iteration; NaN if nobody tells."""
    steps_s: list[float] = (window.worker_duration_s / np.maximum(window.iterations, 1)).tolist()
    return median([step_s for step_s in steps_s if math.isfinite(step_s)] or [math.nan])


def _apart(compute: Array, total: Array, power: Array) -> Array:
    """The network time that makes T out of C, relative to T so that high powers do not underflow."""
    return np.asarray(total * np.maximum(1 - (compute / total) ** power, 0.0) ** (1 / power))
