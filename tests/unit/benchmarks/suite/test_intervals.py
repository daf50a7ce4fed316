"""Intervals over seeds cover the truth as often as they say, also where strata share their seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy.stats import t as student

from benchmarks.suite.intervals import (
    Stratum,
    geometric_mean,
    jackknife,
    mean,
    paired_ratio,
    smallest_difference,
)
from dynamix_ps.sim.contest.comparison import Estimate, estimate, interquartile_mean

Design = Sequence[Sequence[int]]  # the seeds of every stratum
STUDIES = 2000
COVERED = 0.93  # of the intervals of 95 %, at least
DESIGNS: dict[str, Design] = {
    "three scenarios, the same three seeds": [range(3)] * 3,
    "three scenarios, the same ten seeds": [range(10)] * 3,
    "five workloads on two clusters with seeds of their own": [range(3)] * 5 + [range(10, 13)] * 5,
    "more seeds of some workloads": [range(8)] * 2 + [range(3)] * 3 + [range(10, 13)] * 5,
    "one scenario, five seeds": [range(5)],
}


def studies(design: Design, shared: float, scatter: Sequence[float] = ()) -> list[list[dict[int, float]]]:
    """Studies whose true mean is 0. `shared`: part of the variance that all runs of a seed share."""
    rng, found = np.random.default_rng(0), []
    scatter = scatter or [1.0] * len(design)
    for _ in range(STUDIES):
        luck = {seed: rng.normal() for seed in sorted(set().union(*design))}
        found.append(
            [
                {seed: s * (math.sqrt(shared) * luck[seed] + math.sqrt(1 - shared) * rng.normal()) for seed in seeds}
                for seeds, s in zip(design, scatter, strict=True)
            ]
        )
    return found


def coverage(made: Sequence[Sequence[Stratum]], interval: Callable[[Sequence[Stratum]], Estimate | None]) -> float:
    intervals = [one for study in made if (one := interval(study))]
    return sum(one.low <= 0 <= one.high for one in intervals) / len(made)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [0.0, 0.7])
@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS.keys())
def test_an_interval_covers_the_truth_as_often_as_it_says(design: Design, shared: float) -> None:
    assert COVERED <= coverage(studies(design, shared), mean) <= 0.985


def test_also_where_one_stratum_has_most_of_the_scatter() -> None:
    design = [range(3), range(10, 13), range(20, 23)]
    assert coverage(studies(design, 1.0, [10.0, 1.0, 1.0]), mean) >= COVERED


def test_a_bootstrap_that_draws_every_scenario_apart_does_not() -> None:
    """Why this module is there."""

    def drawn(study: Sequence[Stratum]) -> Estimate:
        values = np.array([list(one.values()) for one in study])
        return estimate(lambda some: some.mean(axis=(-2, -1)), values, rng=np.random.default_rng(0))

    made = studies([range(3)] * 3, shared=0.5)[:300]
    assert coverage(made, drawn) < 0.75 < COVERED <= coverage(made, mean)


@pytest.mark.slow
def test_a_jackknife_of_interquartile_means_covers_it_nearly_as_often() -> None:
    def drawn(study: Sequence[Stratum]) -> Estimate:
        return jackknife(interquartile_mean, np.array([list(one.values()) for one in study]))

    assert coverage(studies([range(10)] * 3, shared=0.5)[:500], drawn) >= 0.91


def test_with_the_same_seeds_everywhere_it_is_students_t_over_the_means_of_the_seeds() -> None:
    values = np.random.default_rng(0).normal(size=(3, 4))
    found, other = mean([dict(enumerate(one)) for one in values.tolist()]), jackknife(np.mean, values)
    by_seed = values.mean(axis=0)
    reach = student.ppf(0.975, 3) * by_seed.std(ddof=1) / 2
    for one in (found, other):
        assert one is not None
        assert (one.value, one.low, one.high) == pytest.approx(
            (by_seed.mean(), by_seed.mean() - reach, by_seed.mean() + reach)
        )


def test_of_two_strata_with_other_seeds_it_is_welchs() -> None:
    one, two = {0: 1.0, 1: 2.0, 2: 4.0}, {10: 5.0, 11: 5.5}
    found = mean([one, two])
    errors = [np.var(list(values.values()), ddof=1) / len(values) / 4 for values in (one, two)]
    freedom = sum(errors) ** 2 / (errors[0] ** 2 / 2 + errors[1] ** 2 / 1)
    assert found is not None
    assert found.high - found.value == pytest.approx(student.ppf(0.975, freedom) * math.sqrt(sum(errors)))


def test_every_stratum_counts_as_much() -> None:
    many, few = dict.fromkeys(range(50), 0.4), dict.fromkeys(range(2), 0.0)
    found = geometric_mean([many, few])
    assert found is not None
    assert (found.low, found.value, found.high) == pytest.approx((math.exp(0.2),) * 3)


def test_one_seed_has_no_interval() -> None:
    assert mean([{1: 0.1}]) is None and mean([{1: 0.1, 2: 0.2}, {1: 0.1}]) is None and mean([]) is None
    assert jackknife(np.mean, np.array([[2.0], [4.0]])) == Estimate(3.0, 3.0, 3.0)
    assert paired_ratio(np.array([1.0]), np.array([2.0])) == Estimate(0.5, 0.5, 0.5)
    assert smallest_difference([{1: 0.1}]) == math.inf


def test_equal_values_have_an_interval_without_width() -> None:
    found = mean([dict.fromkeys(range(3), 0.1), dict.fromkeys(range(3), 0.7)])
    assert found is not None and found.low == found.high
    assert smallest_difference([dict.fromkeys(range(3), 0.1)]) == 0.0


def test_what_seeds_can_show_is_more_than_their_interval_is_wide() -> None:
    values = {0: 0.1, 1: 0.2, 2: 0.15, 3: 0.3}
    found = mean([values])
    assert found is not None
    width = found.high - found.value
    assert smallest_difference([values]) == pytest.approx(
        math.expm1(width * (1 + student.ppf(0.8, 3) / student.ppf(0.975, 3)))
    )
    twice = smallest_difference([values, values])
    assert twice == pytest.approx(smallest_difference([values])), "the same luck twice shows no more"
