"""Robust means and their intervals, against cases with a known answer."""

from __future__ import annotations

import numpy as np
import pytest

from dynamix_ps.sim.contest.comparison import estimate, interquartile_mean, probability_of_improvement


def test_the_middle_half_is_what_counts() -> None:
    samples = np.array([[1.0, 2, 3, 4, 5, 6, 7, 1000]])
    assert interquartile_mean(samples) == pytest.approx(4.5)
    assert interquartile_mean(samples.reshape(2, 4)) == pytest.approx(4.5)  # scenarios and seeds together
    assert interquartile_mean(np.stack([samples, 2 * samples])) == pytest.approx([4.5, 9.0])


def test_probability_of_improvement_counts_all_pairs_and_halves_ties() -> None:
    ours, theirs = np.array([[1.0, 3.0]]), np.array([[2.0, 3.0]])
    assert probability_of_improvement(ours, theirs) == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert probability_of_improvement(theirs, ours) == pytest.approx(1 - 2.5 / 4)
    mixed = np.array([[1.0, 1.0], [9.0, 9.0]])  # always better in one scenario, never in the other
    assert probability_of_improvement(mixed, np.full((2, 2), 5.0)) == pytest.approx(0.5)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(60):
        found = estimate(interquartile_mean, 5 + rng.standard_normal((3, 20)), rng=rng)
        assert found.low <= found.value <= found.high
        inside += found.low <= 5 <= found.high
    assert 50 <= inside <= 60


def test_the_bootstrap_stays_within_a_scenario() -> None:
    """Scenarios that differ a hundredfold and seeds that do not differ: nothing is uncertain."""
    samples = np.array([[1.0] * 5, [100.0] * 5])
    found = estimate(interquartile_mean, samples, rng=np.random.default_rng(0))
    assert found.low == found.value == found.high


def test_same_generator_same_interval() -> None:
    samples = np.random.default_rng(1).random((2, 10))
    first, second = (estimate(interquartile_mean, samples, rng=np.random.default_rng(2)) for _ in range(2))
    assert first == second
