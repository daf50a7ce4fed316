"""From the advised global batch to sizes: how far B moves in one window, and the split with which all finish together.

Arrays are (...,) for a live cluster or for all environments of the simulator. These rules are chosen by us.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from dynamix_ps.apportion import Whole, split
from dynamix_ps.policy.window_arrays import Array, WindowArrays, known_or

LARGEST_MOVE = 1.0  # |log2| of the change of B in one window: of the advice, and of advice and correction together
WORTH = 0.03  # of an iteration; while B stays, a split that promises less is not worth a switch


class SplitModel(Protocol):
    """Predicts untried iterations."""

    def balanced(self, totals: Whole) -> Array:
        """Real-valued, positive sizes, (..., workers), with which all workers finish together."""
        ...

    def longest_s(self, sizes: Array) -> Array:
        """How long an iteration with these sizes, (..., workers), takes."""
        ...


def advised_batch(window: WindowArrays, advised: Array) -> Array:
    """The advised global batch, (...,): B* = B * 2^advised, at most a factor of 2 away; B if unknown."""
    away = np.minimum(np.maximum(known_or(advised), -LARGEST_MOVE), LARGEST_MOVE)
    return np.asarray(np.maximum(window.global_batch, 1) * np.exp2(away))


def total_within(window: WindowArrays, wanted: Array) -> Whole:
    """The wanted global batch, (...,), at most LARGEST_MOVE away, within the bounds of the workers."""
    now, largest = np.maximum(window.global_batch, 1), np.exp2(LARGEST_MOVE)
    moved = np.minimum(np.maximum(wanted, now / largest), now * largest)
    lowest, highest = (bounds.sum(axis=-1) for bounds in _bounds(window))
    total: Whole = np.minimum(np.maximum(np.rint(moved), lowest), highest).astype(np.int64)
    return total


def balanced_sizes(window: WindowArrays, total: Whole, model: SplitModel, factors: Array | float = 1.0) -> Whole:
    """`total` split so that by `model` all workers finish together, times each worker's factor, (..., workers).

    The present sizes stay if B stays and an iteration would hardly be shorter. Absent workers keep their size.
    """
    planned, present = window.planned, window.present
    wanted = model.balanced(total) * factors
    sizes = split(total, wanted if window.everyone else np.where(present, wanted, 0), *_bounds(window))
    same = total == window.global_batch
    if not same.any():
        return sizes
    now_s, then_s = (model.longest_s(np.where(present, those / factors, 0)) for those in (planned, sizes))
    stays = same & (then_s > (1 - WORTH) * now_s)
    inside = ((planned >= window.low) & (planned <= window.high)).all(axis=-1)
    return np.where((stays & inside)[..., None], planned, sizes)


def _bounds(window: WindowArrays) -> tuple[Whole, Whole]:
    """Smallest and largest sizes, (..., workers); absent workers keep theirs."""
    if window.everyone:
        return window.low, window.high
    there, planned = window.present, window.planned
    return np.where(there, window.low, planned), np.where(there, window.high, planned)
