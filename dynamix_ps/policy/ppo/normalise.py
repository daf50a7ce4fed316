"""Running mean and variance of every feature, ignoring unknown values; part of the saved policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LIMIT = 5.0  # normalised values are cut off here
_SMALLEST_STD = 1e-6


@dataclass(frozen=True, slots=True)
class Normaliser:
    """Statistics per feature, float64: how often it was known, its mean, and the sum of squared differences."""

    count: NDArray[np.float64]
    mean: NDArray[np.float64]
    spread: NDArray[np.float64]

    @staticmethod
    def empty(n_features: int) -> Normaliser:
        return Normaliser(np.zeros(n_features), np.zeros(n_features), np.zeros(n_features))

    def updated(self, rows: NDArray[np.float64]) -> Normaliser:
        """With `rows` (NaN: unknown) taken in; the pairwise update of Chan, Golub and LeVeque."""
        known = np.isfinite(rows)
        filled = np.where(known, rows, 0.0)
        count = known.sum(axis=0).astype(np.float64)
        mean = filled.sum(axis=0) / np.maximum(count, 1)
        spread = (np.where(known, rows - mean, 0.0) ** 2).sum(axis=0)
        total = self.count + count
        share = count / np.maximum(total, 1)
        difference = mean - self.mean
        return Normaliser(
            total,
            self.mean + np.where(count > 0, difference * share, 0.0),
            self.spread + spread + np.where(count > 0, difference**2 * self.count * share, 0.0),
        )

    def apply(self, rows: NDArray[np.float64]) -> NDArray[np.float32]:
        """Normalised rows, unknown values 0, with one mask column per feature (1: known) appended.

        Always finite. A feature that never varied is 0.
        """
        known = np.isfinite(rows)
        std = np.sqrt(self.spread / np.maximum(self.count, 1))
        scaled = (np.where(known, rows, 0.0) - self.mean) / np.maximum(std, _SMALLEST_STD)
        usable = known & (std > _SMALLEST_STD)
        values = np.where(usable, np.clip(scaled, -LIMIT, LIMIT), 0.0)
        return np.concatenate([values, known], axis=1).astype(np.float32)
