"""The cross-entropy method: a search over real numbers that needs nothing but scores. Pure.

    draw    points from a normal distribution, independent in every number
    after   the distribution moves to the points of the lowest scores

As in Rubinstein and Kroese, The Cross-Entropy Method (2004), with smoothed deviations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

KEPT = 0.5  # of the deviation before; the rest is that of the best points
SMALLEST = 0.1  # deviation, so that the search does not end before it has scored enough points


@dataclass(frozen=True, slots=True)
class Search:
    """The distribution of the points, (numbers,) each."""

    mean: Array
    deviation: Array

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Points, (count, numbers). The first one is the mean."""
        points = self.mean + self.deviation * rng.standard_normal((count, len(self.mean)))
        points[0] = self.mean
        return points

    def after(self, points: Array, scores: Array, best: int) -> Search:
        """The distribution that follows from the scores of these points.

        Args:
            scores: (points,), lower is better.
            best: so many points count.
        """
        elite = points[np.argsort(scores, kind="stable")[:best]]
        deviation = KEPT * self.deviation + (1 - KEPT) * elite.std(axis=0)
        return Search(elite.mean(axis=0), np.maximum(deviation, SMALLEST))
