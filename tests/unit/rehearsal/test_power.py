"""What a number of paired seeds can show."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dynamix_ps.rehearsal.power import pairs_needed, smallest_difference


def test_most_studies_see_the_difference_that_is_promised() -> None:
    """Studies of eight pairs, of a true ratio that is just as large: Student's test sees it in four of five."""
    rng, scatter, pairs = np.random.default_rng(0), 0.12, 8
    sample = rng.normal(size=pairs)
    promised = smallest_difference(scatter * (sample - sample.mean()) / sample.std(ddof=1))
    studies = rng.normal(math.log1p(promised), scatter, size=(20_000, pairs))
    errors = studies.std(axis=1, ddof=1) / math.sqrt(pairs)
    seen = studies.mean(axis=1) > 2.365 * errors  # the quantile for seven degrees of freedom
    assert seen.mean() == pytest.approx(0.8, abs=0.03)


def test_more_pairs_and_less_scatter_show_more() -> None:
    logs = np.array([0.1, -0.1, 0.2, -0.2])
    assert smallest_difference(np.tile(logs, 4)) < smallest_difference(logs)
    assert smallest_difference(logs / 2) < smallest_difference(logs)
    assert smallest_difference([0.0, 0.0]) == 0.0
    assert smallest_difference([0.3]) == math.inf


def test_strata_have_means_of_their_own() -> None:
    logs = np.array([0.1, -0.1, 0.2, -0.2])
    assert smallest_difference(logs, logs + 3.0) == pytest.approx(smallest_difference(logs, logs))
    assert smallest_difference(logs, logs) < smallest_difference(logs) < smallest_difference(np.append(logs, logs + 3))
    assert smallest_difference(logs, [0.1]) == math.inf


@pytest.mark.parametrize("scatter", [0.05, 0.12, 0.21])
def test_as_many_pairs_as_are_needed_are_enough(scatter: float) -> None:
    pairs = pairs_needed(scatter, 0.05)
    sample = np.resize([1.0, -1.0], pairs)

    def shown(number: int) -> float:
        return smallest_difference(scatter * sample[:number] / sample[:number].std(ddof=1))

    assert shown(pairs) <= 0.05 < shown(pairs - 1)
    assert pairs_needed(0.0, 0.05) == 2


def test_the_typical_scatter_needs_dozens_of_pairs() -> None:
    assert 40 <= pairs_needed(0.12, 0.05) <= 55
