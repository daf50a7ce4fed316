"""How the learning rate follows the global batch: a factor on the script's own rate. Pure.

B0 is the global batch that the script was tuned for (the first sizes in the cluster file), s = B / B0. Where losses
are means over other units than samples, B is what the units of the iteration are worth in samples (units.py).

    none      1
    linear    s          SGD with small batches
    sqrt      sqrt(s)    Adam and the like
    adascale  r = (V/B0 + S) / (V/B + S), between 1 and s: AdaScale SGD (arXiv 2007.05105, eq. 3)

V is the variance of one sample's gradient, S the squared norm of the true gradient (metrics/noise.py). Where noise
dominates, r is near s; where there is little noise, it is near 1. V and S are exponential means with the paper's weight
1 - n/1000 per iteration for n workers, cut off at 0 as in the paper. Before the first estimate r is 1. Every worker
must compute the same factor, bit by bit, so all inputs come from the summed trailer.
"""

from __future__ import annotations

import math
from typing import Literal

from dynamix_ps.metrics.noise import GradientNoise

Rule = Literal["none", "linear", "sqrt", "adascale"]
Noise = tuple[float, float]  # means of V and S, up to a common factor


class LearningRate:
    """The rule of one run.

    Args:
        reference_batch: B0.
        workers: number of gradients in one estimate.
        noise: of the run that this one resumes.
    """

    def __init__(self, rule: Rule, reference_batch: int, workers: int, noise: Noise = (0.0, 0.0)) -> None:
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

    def factor(self, global_batch: float) -> float:
        """Factor on the script's own learning rate at this B."""
        if self._rule == "adascale":
            return self._gain(global_batch)
        scale = global_batch / self._reference_batch
        return {"none": 1.0, "linear": scale, "sqrt": math.sqrt(scale)}[self._rule]

    def _gain(self, global_batch: float) -> float:
        variance, signal = (max(part, 0.0) for part in self.noise)
        below = variance / global_batch + signal
        return (variance / self._reference_batch + signal) / below if below > 0 else 1.0
