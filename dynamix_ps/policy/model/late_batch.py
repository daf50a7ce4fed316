"""Towards the end of training, a larger global batch replaces a falling learning rate. Pure.

The noise of training is proportional to lr / B. So at a constant learning rate a larger B has the effect of a smaller
rate, with fewer and larger iterations (Smith et al., arXiv 1711.00489). In the last quarter of training B* is twice its
earlier value, or less if that would train fewer samples per second. The model of progress does not show this gain: it
looks one step ahead, where the smaller B is as good.

`efficiency.finishing` says when this applies. A Fashion-MNIST CNN trained for two epochs gains 0.4 points of accuracy
(benchmarks/results/finish.md). Quarter and factor are chosen by us.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FACTOR = 2.0  # on the global batch
SLOWER = 0.02  # part of the samples per second that a larger batch may cost

Array = NDArray[np.floating[Any]]


class LateBatch:
    """Keeps the global batch of the last quarter; shape (...,)."""

    def __init__(self, *shape: int) -> None:
        self.begun = False  # in any environment; while False, a call of `advise` with nothing due changes nothing
        self._batch: Array = np.full(shape, np.nan)

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Forget some environments."""
        self._batch[which] = np.nan

    def advise(self, due: NDArray[np.bool_], advised: Array, candidates: Array, duration_s: Array) -> Array:
        """B*: `advised` where nothing is due, else the enlarged B* of the first window in which it was due. All (...,).

        Args:
            candidates: global batches, (candidates, ...); `advised` is one of them.
            duration_s: durations of their iterations.
        """
        per_sample_s = duration_s / np.maximum(candidates, 1)
        now_s = np.where(candidates == advised, per_sample_s, 0.0).max(axis=0)
        fits = (candidates <= FACTOR * advised * (1 + 1e-9)) & (per_sample_s <= (1 + SLOWER) * now_s)
        largest = np.where(fits, candidates, advised).max(axis=0)
        begun = np.isfinite(self._batch)
        self._batch = np.where(due, np.where(begun, self._batch, largest), np.nan)
        self.begun = bool(due.any())
        return np.asarray(np.where(due, self._batch, advised))
