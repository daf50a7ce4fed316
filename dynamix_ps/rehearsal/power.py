"""What a number of paired seeds can show. Pure.

If the logarithms of the pairs' ratios scatter by s, their mean over n pairs has a standard error e = s / sqrt(n). Most
studies (POWER of them) see a true ratio of exp(d), so that 1 lies outside their interval of 95 %, with

    d = (t(1 - 0.05 / 2) + t(POWER)) e

t: quantiles of Student's distribution with n - 1 degrees of freedom. The sum of both is the usual approximation of the
power of a paired test (Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988, chapter 2).

Pairs of k strata, such as k scenarios, have a scatter and a mean in each of them. Then e is the standard error of the
mean of these means, sqrt(sum of s^2 / n over the strata) / k, and the degrees of freedom are the sum of theirs.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student

from dynamix_ps.sim.contest.comparison import CONFIDENCE

POWER = 0.8  # the usual value
MOST_PAIRS = 100_000


def smallest_difference(*strata: ArrayLike) -> float:
    """The smallest relative difference that most studies with such pairs see; 0.05: 5 %. Infinite if a stratum has
    fewer than two pairs.

    Args:
        strata: log ratios of its pairs; only their number and their scatter count.
    """
    known = [np.asarray(stratum, dtype=np.float64) for stratum in strata]
    if any(len(stratum) < 2 for stratum in known):
        return math.inf
    error = math.sqrt(sum(stratum.var(ddof=1) / len(stratum) for stratum in known)) / len(known)
    return _difference(error, sum(len(stratum) - 1 for stratum in known))


def pairs_needed(scatter: float, difference: float) -> int:
    """The smallest number of pairs with which most studies see this relative difference, at most MOST_PAIRS.

    Args:
        scatter: standard deviation of the logarithm of a pair's ratio.
    """
    few, enough = 1, 2

    def too_few(pairs: int) -> bool:
        return _difference(scatter / math.sqrt(pairs), pairs - 1) > difference

    while enough < MOST_PAIRS and too_few(enough):
        few, enough = enough, 2 * enough
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (middle, enough) if too_few(middle) else (few, middle)
    return min(enough, MOST_PAIRS)


def _difference(error: float, freedom: int) -> float:
    quantiles = student.ppf((1 + CONFIDENCE) / 2, freedom) + student.ppf(POWER, freedom)
    return math.expm1(min(float(quantiles) * error, 700.0))
