"""The gradient noise scale from unequal local batches. Pure.

Worker i's mean gradient g_i over b_i samples is the true gradient G plus noise of covariance Sigma / b_i, and
g = sum (b_i / B) g_i with B = sum b_i. So

    E |g_i|^2 = S + V / b_i        S = |G|^2, V = trace(Sigma)
    E |g|^2   = S + V / B

and each worker gives an unbiased estimate V_i = (|g_i|^2 - |g|^2) / (1/b_i - 1/B), which is noisier the larger the
worker's share is (Cannikin, arXiv 2402.05302, estimates from unequal batches; its weights are not published). All V_i
contain |g|^2, so their covariance matters as much as their variance. For Gaussian noise, Cov(V_i, V_j) has one part
from the noise (1/b_i^2 on the diagonal) and one from G (1/b_i). The weights of least variance are the same for both
parts: proportional to 1 - b_i/B (derived by us: Sherman-Morrison on each part). That gives

    V = sum b_i (|g_i|^2 - |g|^2) / (n - 1)        S = |g|^2 - V / B

which is the pooled variance of the workers' gradients, does not depend on G, and is uncorrelated with |g|^2. The
noise scale is V / S (the simple noise scale B_simple of arXiv 1812.06162): beyond about this global batch, more samples
per step help little. V and S are smoothed separately before the division, because a ratio of noisy numbers is biased.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SMOOTHING = 0.9  # weight of the earlier mean, per window (chosen by us: about ten windows of memory)


@dataclass(frozen=True, slots=True)
class GradientNoise:
    """Unbiased estimates; NaN if unknown. Single estimates may be negative."""

    variance: float = math.nan  # V, per sample
    signal: float = math.nan  # S

    @property
    def scale(self) -> float:
        """V / S in samples; NaN unless both are positive."""
        return self.variance / self.signal if self.variance > 0 and self.signal > 0 else math.nan


def estimate(sizes: Sequence[float], grad_sq: Sequence[float], global_grad_sq: float) -> GradientNoise:
    """Estimate from one iteration: samples b_i and |g_i|^2 of every worker, and |g|^2 of their weighted mean.

    Sizes are what they are worth in samples, where the script weighs by other units (worker_hooks/exchange/units.py).
    Workers without samples do not count. NaN if a norm is missing or fewer than two workers have samples.
    """
    active = [(size, square) for size, square in zip(sizes, grad_sq, strict=True) if size > 0]
    if len(active) < 2:
        return GradientNoise()
    total = sum(size for size, _ in active)
    between = sum(size * (square - global_grad_sq) for size, square in active)
    variance = between / (len(active) - 1)
    return GradientNoise(variance, global_grad_sq - variance / total)


class SmoothedNoise:
    """Exponentially weighted means of V / |g|^2 and S / |g|^2, bias corrected at the start.

    The means are relative to the |g|^2 of a window: gradients shrink tenfold and more in the first windows, which would
    otherwise outweigh all later ones.
    """

    def __init__(self, smoothing: float = SMOOTHING) -> None:
        self._smoothing = smoothing
        self._variance = self._signal = self._weight = 0.0

    def update(self, noise: GradientNoise, global_grad_sq: float) -> GradientNoise:
        """Take an estimate in, with its |g|^2, and return the smoothed estimate.

        An unknown estimate changes nothing.
        """
        if math.isfinite(noise.variance) and math.isfinite(noise.signal) and global_grad_sq > 0:
            fresh = 1.0 - self._smoothing
            self._variance += fresh * (noise.variance / global_grad_sq - self._variance)
            self._signal += fresh * (noise.signal / global_grad_sq - self._signal)
            self._weight += fresh * (1.0 - self._weight)
        return self.value

    @property
    def value(self) -> GradientNoise:
        if not self._weight:
            return GradientNoise()
        return GradientNoise(self._variance / self._weight, self._signal / self._weight)
