"""Shares by measured throughput: the dynamic-batching controller (arXiv 2305.12213, III-C), with B kept.

The published step b_k <- b_k * mean(t) / t_k also changes the global batch. Here the same shares,
X_k / sum X with X_k = b_k / t_k, split an unchanged B. The dead-band is 5 % as published. Chosen by us: how times are
smoothed, what they say of sizes that were not tried, and when sizes may change (steady_times.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from dynamix_ps.apportion import apportion
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.policy.baselines.steady_times import SteadyTimes


class ProportionalPolicy:
    """Splits the present global batch so that all workers finish together."""

    name = "proportional"

    def __init__(self, n_workers: int) -> None:
        self._times = SteadyTimes(n_workers)

    def decide(self, view: View) -> Decision:
        """New sizes, or the present ones if the window is not clean, little would change, or bounds forbid it."""
        sizes = view.plan.batch_sizes
        if not view.clean:
            return Decision(sizes)
        self._times.observe(view)
        known = self._times.known
        shares: list[float | None] = [None] * len(sizes)
        for rank, share in zip(known, self._times.equal_times(sum(sizes[rank] for rank in known), sizes), strict=True):
            shares[rank] = share
        return self._times.decide(view, shares_by_speed(view, shares))


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
