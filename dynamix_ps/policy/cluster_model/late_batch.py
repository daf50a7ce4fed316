"""Towards the end of training a larger global batch takes the place of a learning rate that falls. Pure.

With a constant learning rate the noise of training falls with lr / B, so a larger B has the effect of a smaller rate,
in fewer and larger iterations (Smith et al., arXiv 1711.00489). For the last quarter of training B* is twice what it
was, or less where that would train fewer samples per second. The model of progress does not show this: it looks one
step ahead, where the smaller B is as good.

`efficiency.finishing` tells when this applies. On a Fashion-MNIST CNN, two epochs, training ends 0.4 points higher
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
    """Remembers the global batch of the last quarter; shape (...,)."""

    def __init__(self, *shape: int) -> None:
        self.begun = False  # somewhere; until then `advise` changes nothing where nothing is due
        self._batch: Array = np.full(shape, np.nan)

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Forget some environments."""
        self._batch[which] = np.nan

    def advise(self, due: NDArray[np.bool_], advised: Array, candidates: Array, duration_s: Array) -> Array:
        """B*: `advised` where nothing is due, else what it was when it first was, enlarged. All (...,).

        Args:
            candidates: global batches, (candidates, ...); `advised` is one of them.
            duration_s: of their iterations.
        """
        per_sample_s = duration_s / np.maximum(candidates, 1)
        now_s = np.where(candidates == advised, per_sample_s, 0.0).max(axis=0)
        fits = (candidates <= FACTOR * advised * (1 + 1e-9)) & (per_sample_s <= (1 + SLOWER) * now_s)
        largest = np.where(fits, candidates, advised).max(axis=0)
        begun = np.isfinite(self._batch)
        self._batch = np.where(due, np.where(begun, self._batch, largest), np.nan)
        self.begun = bool(due.any())
        return np.asarray(np.where(due, self._batch, advised))
