from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dynamix_ps.apportion import apportion, split

weights_lists = st.lists(st.floats(0, 1e300, allow_nan=False), min_size=1, max_size=12)


@st.composite
def bounded_splits(draw: st.DrawFn) -> tuple[int, list[float], list[int], list[int]]:
    weights = draw(weights_lists)
    lows = [draw(st.integers(0, 200)) for _ in weights]
    highs = [low + draw(st.integers(0, 500)) for low in lows]
    total = draw(st.integers(sum(lows), sum(highs)))
    return total, weights, lows, highs


def test_exact_shares_need_no_rounding() -> None:
    assert apportion(192, (64, 64, 64)) == (64, 64, 64)
    assert apportion(200, (3, 5, 12)) == (30, 50, 120)


def test_largest_remainder_and_ties_to_the_lower_index() -> None:
    assert apportion(10, (1, 1, 1)) == (4, 3, 3)
    assert apportion(11, (1, 1, 1)) == (4, 4, 3)
    assert apportion(100, (0.335, 0.335, 0.33)) == (34, 33, 33)


def test_zero_weights() -> None:
    assert apportion(9, (0, 0, 0)) == (3, 3, 3)
    assert apportion(9, (0, 1, 2)) == (0, 3, 6)
    assert apportion(9, (0, 1, 2), high=(9, 2, 2)) == (5, 2, 2)


def test_what_a_bound_takes_goes_to_the_free_parts() -> None:
    assert apportion(192, (1, 10, 10), low=(32, 32, 32), high=(1024,) * 3) == (32, 80, 80)
    assert apportion(300, (1, 1, 8), low=(0, 0, 0), high=(1024, 1024, 100)) == (100, 100, 100)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((5, ()), "no weights"),
        ((5, (1, math.nan)), "weight 1 is nan"),
        ((5, (1, -1)), "weight 1 is -1"),
        ((-1, (1, 1)), "total -1"),
        ((5, (1, 1), (3, 3)), r"total 5 is outside \[6"),
        ((9, (1, 1), (0, 0), (4, 4)), r"\[0, 8\]"),
        ((9, (1, 1), (5, 0), (4, 9)), "bounds of part 0"),
        ((9, (1, 1), (5,)), "1 lower"),
    ],
)
def test_impossible_requests_say_why(arguments: tuple[object, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        apportion(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_many_splits_at_once_refuse_weights_that_would_never_end(weight: float) -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        split(np.array([4]), np.array([[1.0, weight]]), np.zeros((1, 2), dtype=int), np.full((1, 2), 4))


@given(bounded_splits())
def test_sum_and_bounds_are_kept(case: tuple[int, list[float], list[int], list[int]]) -> None:
    total, weights, lows, highs = case
    parts = apportion(total, weights, lows, highs)
    assert sum(parts) == total
    assert all(low <= part <= high for low, part, high in zip(lows, parts, highs, strict=True))


@given(st.integers(0, 10_000), st.lists(st.integers(0, 1000), min_size=1, max_size=12))
def test_unbounded_parts_stay_within_one_of_the_exact_share(total: int, weights: list[int]) -> None:
    parts = apportion(total, weights)
    exact = weights if any(weights) else [1] * len(weights)
    for part, weight in zip(parts, exact, strict=True):
        assert abs(part - total * weight / sum(exact)) < 1 + 1e-6


@given(bounded_splits())
@example((2, [0.0, 1e116, 1e-208], [0, 0, 0], [1, 1, 1]))  # further apart than numbers reach
def test_larger_weight_never_gets_less_under_equal_bounds(case: tuple[int, list[float], list[int], list[int]]) -> None:
    total, weights, lows, highs = case
    low, high = min(lows), max(highs)
    parts = apportion(total, weights, [low] * len(weights), [high] * len(weights))
    order = sorted(range(len(weights)), key=lambda i: (weights[i], -i))
    for a, b in itertools.pairwise(order):
        rounding = weights[a] != weights[b] and math.isclose(weights[a], weights[b], rel_tol=1e-12)
        assert parts[a] <= parts[b] + rounding


@given(bounded_splits())
def test_more_to_split_takes_at_most_one_from_anybody(case: tuple[int, list[float], list[int], list[int]]) -> None:
    total, weights, lows, highs = case
    if total == sum(highs):
        return
    before = apportion(total, weights, lows, highs)
    after = apportion(total + 1, weights, lows, highs)
    assert all(new >= old - 1 for old, new in zip(before, after, strict=True))
