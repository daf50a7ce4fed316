"""Which factors the next plan may have."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.policy.rate.limits import (
    LEAST_ITERATIONS,
    RISE_ITERATIONS,
    STEPS,
    RateLimits,
    nearest,
    stepped,
)

ROOT = math.sqrt(2)
DOWN = (0.5, math.sqrt(0.5), 1.0)


def after(*spans: tuple[int, int, float], resumed: bool = False) -> tuple[float, ...]:
    limits = RateLimits(resumed)
    for span in spans:
        limits.observe(*span)
    return limits.allowed()


def test_a_factor_stays_for_forty_iterations() -> None:
    assert RateLimits().allowed() == (1.0,)
    assert after((1, 20, 1.0)) == after((1, 20, 1.0), (20, 40, 1.0)) == (1.0,)
    assert after((1, 20, 1.0), (20, 41, 1.0)) == STEPS
    assert after((1, 300, 1.0), (300, 320, ROOT)) == (1.0,)
    assert after((1, 300, 1.0), (300, 320, 0.5), (320, 340, 0.5)) != (1.0,)


def test_it_at_most_doubles_in_a_hundred_iterations() -> None:
    assert after((1, 300, 1.0), (300, 340, ROOT)) == (*DOWN, ROOT)
    assert after((1, 300, 1.0), (300, 340, 2.0)) == DOWN
    assert after((1, 300, 1.0), (300, 399, 2.0)) == DOWN
    assert after((1, 300, 1.0), (300, 400, 2.0)) == STEPS
    assert after((1, 300, 1.0), (300, 340, ROOT), (340, 380, 2.0)) == DOWN
    assert after((1, 300, 1.0), (300, 340, 0.25)) == STEPS[:5], "a fall is no rise, and may be taken back"


def test_it_stays_within_an_eighth_and_eight() -> None:
    assert after((1, 300, 0.125)) == (1.0, ROOT, 2.0)
    assert after((1, 300, 0.125 * ROOT)) == (math.sqrt(0.5), 1.0, ROOT, 2.0)
    assert after((1, 300, 8.0)) == DOWN
    assert after((1, 300, 8 / ROOT)) == (*DOWN, ROOT)


def test_after_a_restart_it_does_not_rise_before_the_past_is_known_again() -> None:
    assert after((500, 540, 1.0), resumed=True) == after((500, 599, 1.0), resumed=True) == DOWN
    assert after((500, 600, 1.0), resumed=True) == STEPS


def test_factors_do_not_drift() -> None:
    factor = 1.0
    for step in [math.sqrt(0.5)] * 6 + [ROOT] * 6:
        factor = stepped(factor, step)
    assert factor == 1.0


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [(1.1, 1.0), (0.85, 1.0), (0.83, math.sqrt(0.5)), (1e-9, 0.5), (100, 2.0), (math.nan, 1.0), (0.0, 1.0), (-1, 1.0)],
)
def test_the_nearest_allowed_step_counts(wanted: float, chosen: float) -> None:
    assert nearest(wanted, STEPS) == chosen
    assert nearest(wanted, (1.0,)) == 1.0


@given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from(STEPS)), min_size=1, max_size=60))
def test_whatever_is_asked_for_the_limits_hold(asked: list[tuple[int, float]]) -> None:
    limits, factor, end = RateLimits(), 1.0, 0
    factors: list[float] = []  # of every iteration
    for iterations, wanted in asked:
        limits.observe(end, end + iterations, factor)
        factors += [factor] * iterations
        end += iterations
        allowed = limits.allowed()
        assert 1.0 in allowed
        factor = stepped(factor, nearest(wanted, allowed))
    changes = [t for t in range(1, end) if factors[t] != factors[t - 1]]
    assert all(0.125 <= factor <= 8 for factor in factors)
    assert all(later - earlier >= LEAST_ITERATIONS for earlier, later in itertools.pairwise(changes))
    assert all(factors[t] <= 2 * min(factors[max(t - RISE_ITERATIONS + 1, 0) : t + 1]) for t in range(end))
