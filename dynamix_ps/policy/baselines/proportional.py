"""Shares by measured throughput: the dynamic-batching controller (arXiv 2305.12213, III-C), with B kept.

The published step b_k <- b_k * mean(t) / t_k also changes the global batch. Here the same shares,
X_k / sum X with X_k = b_k / t_k, split an unchanged B. The dead-band is 5 % as published. Chosen by us: the
coefficient of the smoothing, and that smoothing continues when sizes change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dynamix_ps.apportion import apportion, largest_change
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.policy.cluster_model.compute_times import ComputeMeter
from dynamix_ps.policy.window_arrays import arrays_of

DEAD_BAND = 0.05  # if no worker's size would change by more (relative), all stay
SMOOTHING = 0.5  # weight of the newest window in a worker's throughput


class ProportionalPolicy:
    """Splits the present global batch so that all workers finish together."""

    name = "proportional"

    def __init__(self, n_workers: int) -> None:
        self._meter = ComputeMeter(n_workers)
        self._throughput_per_s: list[float | None] = [None] * n_workers

    def decide(self, view: View) -> Decision:
        """New sizes, or the present ones if the window is not clean, little would change, or bounds forbid it."""
        if not view.clean:
            return Decision(view.plan.batch_sizes)
        sizes, times_s = self._meter.per_iteration(arrays_of(view))
        for rank, throughput_per_s in enumerate((sizes / times_s).tolist()):
            if math.isfinite(throughput_per_s):
                self._measure(rank, throughput_per_s)
        wanted = shares_by_speed(view, self._throughput_per_s)
        return Decision(wanted if largest_change(view.plan.batch_sizes, wanted) > DEAD_BAND else view.plan.batch_sizes)

    def _measure(self, rank: int, throughput_per_s: float) -> None:
        before = self._throughput_per_s[rank]
        self._throughput_per_s[rank] = (
            throughput_per_s if before is None else before + SMOOTHING * (throughput_per_s - before)
        )


def shares_by_speed(view: View, speeds_per_s: Sequence[float | None]) -> tuple[int, ...]:
    """B shared in proportion to speed, within bounds. A worker of unknown speed (None) keeps its size; all workers keep
    their sizes if the bounds do not allow this B."""
    sizes = list(view.plan.batch_sizes)
    known = [(rank, speed) for rank, speed in enumerate(speeds_per_s) if speed is not None]
    low, high = zip(*(view.bounds[rank] for rank, _ in known), strict=True) if known else ((), ())
    total = sum(sizes[rank] for rank, _ in known)
    if not sum(low) <= total <= sum(high) or not known:
        return view.plan.batch_sizes
    shares = apportion(total, [speed for _, speed in known], low, high)
    for (rank, _), share in zip(known, shares, strict=True):
        sizes[rank] = share
    return tuple(sizes)
