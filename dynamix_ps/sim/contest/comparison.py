"""Statistics of policies over seeds and scenarios: robust means with intervals (arXiv 2108.13264).

Samples are arrays of shape (scenarios, seeds). The bootstrap resamples the seeds of each scenario, not the scenarios:
an interval holds for these scenarios only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import trim_mean

Array = NDArray[np.float64]
Statistic = Callable[..., Array]  # samples shaped (..., scenarios, seeds) -> (...)

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def interquartile_mean(samples: Array) -> Array:
    """Mean of the middle half of all scenarios and seeds together; (..., scenarios, seeds) -> (...)."""
    return np.asarray(trim_mean(samples.reshape(*samples.shape[:-2], -1), 0.25, axis=-1))


def probability_of_improvement(ours: Array, theirs: Array) -> Array:
    """Probability that a run of `ours` is shorter than one of `theirs`: over all pairs of seeds, mean over scenarios.

    Equal times count half (arXiv 2108.13264, section 4.3). (..., scenarios, seeds) twice -> (...).
    """
    left, right = ours[..., :, None], theirs[..., None, :]
    return np.asarray(((left < right) + 0.5 * (left == right)).mean(axis=(-3, -2, -1)))


def estimate(statistic: Statistic, *samples: Array, rng: np.random.Generator) -> Estimate:
    """A statistic and its percentile interval; seeds are resampled within each scenario (stratified bootstrap).

    Args:
        samples: arguments of the statistic, each (scenarios, seeds), resampled independently. With three seeds the ends
            of an interval are close to the smallest and largest value, which covers less than 95 %.
    """
    drawn = [_resampled(sample, rng) for sample in samples]
    edge = (1 - CONFIDENCE) / 2
    low, high = np.quantile(statistic(*drawn), (edge, 1 - edge))
    return Estimate(float(statistic(*samples)), float(low), float(high))


def _resampled(sample: Array, rng: np.random.Generator) -> NDArray[Any]:
    """(resamples, scenarios, seeds)."""
    chosen = rng.integers(sample.shape[-1], size=(RESAMPLES, *sample.shape))
    return np.take_along_axis(sample[None], chosen, axis=-1)
