"""LBB, load-balanced batching (The Journal of Supercomputing, 2023): B stays; its split equalises computing times.

    T_i(b) = a0_i + a1_i b
    SE = (max T - min T) / mean T                the straggler effect of the window
    SE < 0.05            sizes stay
    SE < 0.3             a fine move: a sample from the slowest worker to the fastest
    else                 the split of B that makes max T - min T smallest, then only fine moves for some windows

This differs from the publication where a profile of the job would be needed:

- There a0 comes from runs at b = 2, 4, 8, ... before the job. Here the whole line comes from the windows seen so far
  (compute_times.py). a0 is 0 in the first split, because until then every worker has been seen at one size only.
- The cap on b is the worker's upper bound, not its out-of-memory size.
- Every worker takes part: it gets at least its lower bound, where the publication allows b = 0.

The published rule acts in every iteration; a decision here stands for a window. So, chosen by us, a fine move is one
sample per iteration of the window, but at most as many as make the times of both workers equal. The fine moves after a
split last 2 windows.
"""

from __future__ import annotations

import math

import numpy as np

from dynamix_ps.policy.base import Decision, View
from dynamix_ps.policy.baselines.proportional import shares_by_speed
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.model.compute_times import Array
from dynamix_ps.policy.window_arrays import arrays_of

BALANCED, NEARLY_BALANCED = 0.05, 0.3  # straggler effects
OBSERVED_WINDOWS = 2


class LbbPolicy:
    """Solves for equal times if they are far apart, and moves single samples if they are close."""

    name = "lbb"

    def __init__(self, n_workers: int) -> None:
        self._model = ClusterModel(n_workers)
        self._observing = 0  # windows left in which only fine moves are made
        self._sizes_vary = False  # after the first split, a0 can be estimated

    def decide(self, view: View) -> Decision:
        """New sizes, or the present ones if the window is not clean or the workers are balanced."""
        keep = Decision(view.plan.batch_sizes)
        if not view.clean:
            return keep
        self._model.observe(arrays_of(view))
        times_s = self._model.known_compute_s
        effect = straggler_effect(times_s)
        observing, self._observing = self._observing > 0, max(self._observing - 1, 0)
        if effect < BALANCED:
            return keep
        if effect < NEARLY_BALANCED or observing:
            return Decision(self._fine_move(view, times_s))
        self._observing = OBSERVED_WINDOWS
        return Decision(self._equal_times(view, times_s))

    def _equal_times(self, view: View, times_s: Array) -> tuple[int, ...]:
        """A new split of B; workers that were never measured keep their sizes."""
        if not self._sizes_vary:
            self._sizes_vary = True
            speeds = zip(view.plan.batch_sizes, times_s.tolist(), strict=True)
            return shares_by_speed(view, [size / time_s if math.isfinite(time_s) else None for size, time_s in speeds])
        return tuple(self._model.shares(view.plan.global_batch, self._model.compute.now).tolist())

    def _fine_move(self, view: View, times_s: Array) -> tuple[int, ...]:
        sizes = np.array(view.plan.batch_sizes)
        low, high = np.array(view.bounds).T
        slowest = int(np.argmax(np.where(np.isfinite(times_s) & (sizes > low), times_s, -math.inf)))
        fastest = int(np.argmin(np.where(np.isfinite(times_s) & (sizes < high), times_s, math.inf)))
        per_sample_s = times_s / np.maximum(sizes, 1)  # an upper limit: assumes that no part of the time is fixed
        gap_s = times_s[slowest] - times_s[fastest]
        samples = min(
            gap_s / (per_sample_s[slowest] + per_sample_s[fastest]),
            max(record.iterations for record in view.reported),
            sizes[slowest] - low[slowest],
            high[fastest] - sizes[fastest],
        )
        if samples >= 1:
            sizes[slowest] -= int(samples)
            sizes[fastest] += int(samples)
        return tuple(sizes.tolist())


def straggler_effect(times_s: Array) -> float:
    """SE of computing times without NaN; 0 if no time is known."""
    known = times_s[np.isfinite(times_s)]
    return float((known.max() - known.min()) / known.mean()) if known.size else 0.0
