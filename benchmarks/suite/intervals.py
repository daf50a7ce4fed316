"""Means over seeds with intervals of 95 %. Seeds are the unit. Pure.

Runs with one seed share their luck: the first weights, the order of the samples, the moments at which a cluster
changes. They share it also where they are of several scenarios or workloads. So three scenarios with the same three
seeds are three draws, and not nine: a bootstrap that draws the nine apart covers the truth in some 75 of 100 studies.

**Means.** The values of a scenario or workload are a stratum, and every stratum counts as much as the others. Value x
of one of n seeds in one of k strata contributes sqrt(n / (n - 1)) (x - mean of the stratum) / (k n). What the values of
one seed contribute is added up, and the squares of these sums over all seeds add up to the variance of the mean. The
interval is Student's. Its degrees of freedom are Satterthwaite's, for strata that scatter as much as these do, and by
their seeds alone. With the same seeds in every stratum that is Student's t over the means of the seeds; with other
seeds in each it is Welch's.

**Other figures**, such as interquartile means: jackknife. The figure without each seed in turn, in all strata at once,
and Student's t with n - 1 degrees of freedom. For a mean of strata with the same seeds both are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy.stats import t as student

from dynamix_ps.rehearsal.power import POWER
from dynamix_ps.sim.contest.comparison import CONFIDENCE, Array, Estimate

_ROUNDING = 1e-12  # a smaller scatter, relative to the values, is that of sums of equal numbers

Stratum = Mapping[int, float]  # values by seed; the same number in two strata is the same seed


def mean(strata: Sequence[Stratum]) -> Estimate | None:
    """Mean of the means of the strata; None without strata, or where one has fewer than two seeds."""
    if not _enough(strata):
        return None
    value = float(np.mean([np.mean(list(one.values())) for one in strata]))
    return _around(value, *_error(strata)) if math.isfinite(value) else Estimate(value, value, value)


def geometric_mean(strata: Sequence[Stratum]) -> Estimate | None:
    """The same of ratios whose logarithms these are."""
    logs = mean(strata)
    return None if logs is None else Estimate(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high))


def paired_ratio(ours: Array, theirs: Array) -> Estimate:
    """Geometric mean of ours / theirs over paired seeds; with one pair: no interval."""
    logs = np.log(ours / theirs)
    value = math.exp(float(logs.mean()))
    return geometric_mean([dict(enumerate(logs.tolist()))]) or Estimate(value, value, value)


def smallest_difference(strata: Sequence[Stratum]) -> float:
    """The smallest relative difference that most studies with such log ratios see, as in rehearsal/power.py; 0.05: 5 %.

    Infinite where `geometric_mean` gives None.
    """
    if not _enough(strata):
        return math.inf
    error, freedom = _error(strata)
    quantiles = student.ppf((1 + CONFIDENCE) / 2, freedom) + student.ppf(POWER, freedom) if error else 0.0
    return math.expm1(min(float(quantiles) * error, 700.0))


def jackknife(figure: Callable[[Array], Array], values: Array) -> Estimate:
    """A figure of values of the shape (strata, seeds), all strata with the same seeds. With one seed: no interval."""
    seeds = values.shape[-1]
    value = float(figure(values))
    if seeds < 2:
        return Estimate(value, value, value)
    without = np.array([float(figure(np.delete(values, seed, axis=-1))) for seed in range(seeds)])
    error = math.sqrt((seeds - 1) / seeds) * float(np.linalg.norm(without - without.mean()))
    return _around(value, error, seeds - 1)


def _enough(strata: Sequence[Stratum]) -> bool:
    return bool(strata) and all(len(one) > 1 for one in strata)


def _error(strata: Sequence[Stratum]) -> tuple[float, float]:
    """Standard error of the mean, and its degrees of freedom."""
    seeds = sorted(set[int]().union(*strata))
    sums, spread = np.zeros(len(seeds)), np.zeros((len(seeds), len(seeds)))
    for one in strata:
        has = np.array([float(seed in one) for seed in seeds])
        values = np.array([one.get(seed, 0.0) for seed in seeds])
        centred = np.diag(has) - np.outer(has, has) / len(one)
        weights = centred / (len(strata) * math.sqrt(len(one) * (len(one) - 1)))
        sums += weights @ values
        spread += np.std(list(one.values()), ddof=1) * weights
    error, product = float(np.linalg.norm(sums)), spread @ spread.T
    if error <= _ROUNDING * max(abs(value) for one in strata for value in one.values()):
        return 0.0, math.inf
    return error, float(np.trace(product) ** 2 / np.sum(product**2))


def _around(value: float, error: float, freedom: float) -> Estimate:
    reach = float(student.ppf((1 + CONFIDENCE) / 2, freedom)) * error if error else 0.0
    return Estimate(value, value - reach, value + reach)
