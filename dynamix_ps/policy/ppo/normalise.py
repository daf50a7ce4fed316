"""Running mean and variance of every feature, without unknown values. A saved policy contains them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIMIT = 5.0  # normalised values are cut off here
_SMALLEST_STD = 1e-6
_LARGEST = 1e30  # a larger value counts as unknown, because its square could overflow


@dataclass(frozen=True)
class Normaliser:
    """Statistics per feature, float64: number of known values, their mean, and their sum of squared differences."""

    count: NDArray[np.float64]
    mean: NDArray[np.float64]
    spread: NDArray[np.float64]

    @staticmethod
    def empty(n_features: int) -> Normaliser:
        return Normaliser(np.zeros(n_features), np.zeros(n_features), np.zeros(n_features))

    def updated(self, rows: NDArray[np.floating[Any]]) -> Normaliser:
        """A normaliser that includes `rows` (NaN: unknown); the pairwise update of Chan, Golub and LeVeque (1979)."""
        known = np.abs(rows) < _LARGEST
        filled = np.where(known, rows, 0.0).astype(np.float64, copy=False)
        count = known.sum(axis=0).astype(np.float64)
        mean = filled.sum(axis=0) / np.maximum(count, 1)
        filled -= mean
        filled *= known
        spread = np.einsum("ij,ij->j", filled, filled)
        total = self.count + count
        share = count / np.maximum(total, 1)
        difference = np.where(count > 0, mean - self.mean, 0.0)
        return Normaliser(
            total, self.mean + difference * share, self.spread + spread + difference**2 * self.count * share
        )

    def apply(self, rows: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Normalised rows (N, F), with one mask column per feature (1: known) appended: (N, 2 F), always finite.

        An unknown value is 0 with mask 0. So is every value of a feature that never varied: the policy cannot have
        learned anything from it, and it has no scale.
        """
        n_features = rows.shape[1]
        varied, per_std = self._units
        known = (np.abs(rows) < _LARGEST) & varied
        result = np.empty((len(rows), 2 * n_features), dtype=np.float32)
        values = result[:, :n_features]
        with np.errstate(over="ignore"):  # in unknown values
            np.subtract(rows, self.mean, out=values, casting="same_kind")
            values *= per_std
        np.maximum(values, -LIMIT, out=values)
        np.minimum(values, LIMIT, out=values)
        np.copyto(values, 0, where=~known)
        result[:, n_features:] = known
        return result

    @cached_property
    def _units(self) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Which features have varied, and 1 / standard deviation of those."""
        std = np.sqrt(self.spread / np.maximum(self.count, 1))
        varied = std > _SMALLEST_STD
        return varied, (1 / np.where(varied, std, 1.0)).astype(np.float32)
