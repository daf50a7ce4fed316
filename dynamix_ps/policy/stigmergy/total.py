"""The global batch that a cluster without a centre goes for: one rule on all workers, from what is in the sum. Pure.

    progress per second (B) = f(B) / T(B)

f is the progress of a step (model/efficiency.py) and T how long an iteration takes (supply.py). As for the
central policy (model/advice.py), a B within WORTH of the best is as good, the one nearest to the first B is taken of
these, and a B below the first one must promise half as much again.

Where two workers differ in the last bits of what they compute here, they go for the same B all the same, as far as
whole sizes tell; and what B becomes is the sum of the sizes that they choose, which all workers know exactly.
"""

from __future__ import annotations

import math

import numpy as np

from dynamix_ps.policy.model.efficiency import efficiency
from dynamix_ps.policy.stigmergy.supply import Supply
from dynamix_ps.policy.window_arrays import WindowArrays

STEPS = np.arange(-8, 9)
FACTORS = np.exp2(STEPS / 8)  # of the present B
WORTH = 0.05  # relative
SMALLER = 0.5  # the additional progress that a B below the first one must promise, relative
NEAR = 2  # a good B stays if the nearest good one is at most this many candidates away
SETTLED = 0.7  # presence of a worker that two windows have measured; before, B stays


def wanted_total(supply: Supply, window: WindowArrays, noise_scale: float, presence: float) -> float:
    """The B that the workers of the field go for together.

    Args:
        window: for the learning-rate rule and the first global batch.
        noise_scale: in samples; NaN: not known, so it is the first B.
        presence: of the worker that has been there longest.
    """
    present = _within(supply, supply.planned)
    if presence < SETTLED:
        return present
    first = max(float(window.reference_batch), 1.0)
    if math.isnan(noise_scale):
        return _within(supply, first)
    candidates = np.clip(FACTORS * present, max(supply.smallest, 1), max(supply.largest, 1))
    per_s = efficiency(window, candidates, np.asarray(noise_scale)) / supply.iteration_s(candidates)
    smaller = candidates < first * FACTORS[len(FACTORS) // 2 - 1]  # more than one candidate below the first B
    per_s = np.where(smaller & (per_s > 0), per_s / (1 + SMALLER), per_s)
    most = per_s.max()
    good = (per_s * (1 + WORTH) >= most) & (per_s > 0) | (per_s == most)
    away = np.where(good, np.abs(np.log(candidates / first)), np.inf)
    nearest, middle = int(away.argmin()), len(FACTORS) // 2
    if good[middle] and abs(nearest - middle) <= NEAR:
        return present
    return float(candidates[nearest])


def _within(supply: Supply, total: float) -> float:
    """The nearest B that the bounds of the workers allow."""
    return float(min(max(total, supply.smallest), supply.largest))
