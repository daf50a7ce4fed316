"""The factor on the script's own learning rate: how it follows the global batch, times what the guard leaves. Pure.

    factor = rule(B) * guard          guard within 1/8..1

The guard leaves 1 unless the cluster file says `lr: guard`. It (rate_guard.py) halves what it leaves when the loss
rises. Every worker must compute the same factor, bit by bit.

The rule: B0 is the global batch that the script was tuned for (the first sizes in the cluster file), s = B / B0. Where
losses are means over other units than samples, B is what the units of the iteration are worth in samples (units.py).

    none      1
    linear    s          SGD with small batches
    sqrt      sqrt(s)    Adam and the like
    adascale  r = (V/B0 + S) / (V/B + S), between 1 and s: AdaScale SGD (arXiv 2007.05105, eq. 3)

V is the variance of one sample's gradient, S the squared norm of the true gradient (metrics/noise.py). Where noise
dominates, r is near s; where there is little noise, it is near 1. V and S are exponential means with the paper's weight
1 - n/1000 per iteration for n workers, cut off at 0 as in the paper. Before the first estimate r is 1. All inputs come
from the summed trailer.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from dynamix_ps.metrics.noise import GradientNoise

Rule = Literal["none", "linear", "sqrt", "adascale"]
SMALLEST_GUARD = 1 / 8  # that the guard leaves of the learning rate; chosen by us
Noise = tuple[float, float]  # means of V and S, up to a common factor


class StepRate(NamedTuple):
    """The factor on the script's learning rate in one step, and the guard's part of it; NaN: there was no step."""

    factor: float = math.nan
    guard: float = math.nan


class LearningRate:
    """The factor of one run.

    Args:
        reference_batch: B0.
        workers: number of gradients in one estimate.
        noise: of the run that this one resumes.
        guard: what the guard has left in the run that this one resumes; 1 where it has no say.
    """

    def __init__(
        self,
        rule: Rule,
        reference_batch: int,
        workers: int,
        noise: Noise = (0.0, 0.0),
        guard: float = 1.0,
    ) -> None:
        self.guard = guard
        self._rule = rule
        self._reference_batch = reference_batch
        self._memory = max(0.0, 1 - workers / 1000)
        self.noise = noise

    def see(self, estimate: GradientNoise, iterations: int) -> None:
        """Take in an estimate that stands for so many iterations; an unknown one changes nothing."""
        if math.isfinite(estimate.variance) and math.isfinite(estimate.signal):
            kept = self._memory**iterations
            variance, signal = self.noise
            self.noise = (
                kept * variance + (1 - kept) * estimate.variance,
                kept * signal + (1 - kept) * estimate.signal,
            )

    def step(self, global_batch: float) -> StepRate:
        """The rate of a step at this B."""
        return StepRate(self.factor(global_batch) * self.guard, self.guard)

    def factor(self, global_batch: float) -> float:
        """The rule's factor at this B."""
        if self._rule == "adascale":
            return self._gain(global_batch)
        scale = 1.0 if self._rule == "none" else global_batch / self._reference_batch
        return math.sqrt(scale) if self._rule == "sqrt" else scale

    def _gain(self, global_batch: float) -> float:
        variance, signal = (max(part, 0.0) for part in self.noise)
        below = variance / global_batch + signal
        return (variance / self._reference_batch + signal) / below if below > 0 else 1.0
