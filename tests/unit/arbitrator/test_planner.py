from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.arbitrator.planner import Guarded, guard, next_plan
from dynamix_ps.messages import LARGEST_VERSION, Plan

BOUNDS = ((32, 1024), (32, 1024), (0, 100))


def test_what_is_within_the_bounds_passes() -> None:
    result = guard((32, 1024, 0), (64, 64, 64), BOUNDS)
    assert result.batch_sizes == (32, 1024, 0)
    assert not result.corrected


def test_what_is_not_is_clamped_and_said() -> None:
    result = guard((math.inf, -5, 50.4), (64, 64, 64), BOUNDS)
    assert result.batch_sizes == (1024, 32, 50)
    assert result.corrected


def test_nan_keeps_the_present_size_within_the_bounds() -> None:
    assert guard((math.nan, 64, math.nan), (100, 64, 400), BOUNDS).batch_sizes == (100, 64, 100)


def test_wrong_length_or_nothing_to_do_keeps_all() -> None:
    assert guard((1.0,), (64, 65, 66), BOUNDS).batch_sizes == (64, 65, 66)
    assert guard((), (64, 65, 66), BOUNDS).corrected
    assert guard((0, 0), (5, 6), ((0, 9), (0, 9))).batch_sizes == (5, 6)


def test_all_together_are_no_more_than_a_pass_over_the_data_as_far_as_the_bounds_allow() -> None:
    assert guard((256, 128, 0), (64, 64, 0), BOUNDS, largest_total=192) == Guarded((128, 64, 0), corrected=True)
    assert guard((256, 32, 0), (64, 64, 0), BOUNDS, largest_total=100).batch_sizes == (68, 32, 0)
    assert guard((256, 256, 50), (64, 64, 0), BOUNDS, largest_total=10).batch_sizes == (32, 32, 0)
    assert guard((math.nan,), (64, 64, 0), BOUNDS, largest_total=100).batch_sizes == (50, 50, 0)
    assert not guard((64, 36, 0), (64, 64, 0), BOUNDS, largest_total=100).corrected


@given(
    proposed=st.lists(st.floats() | st.integers(-(10**9), 10**9), max_size=5),
    current=st.lists(st.integers(1, 5000), min_size=3, max_size=3),
    lows=st.lists(st.integers(0, 500), min_size=3, max_size=3),
    spans=st.lists(st.integers(1, 2000), min_size=3, max_size=3),
    largest=st.just(math.nan) | st.integers(1, 5000),
)
def test_guard_is_total(
    proposed: list[float], current: list[int], lows: list[int], spans: list[int], largest: float
) -> None:
    bounds = tuple((low, low + span) for low, span in zip(lows, spans, strict=True))
    sizes = guard(proposed, current, bounds, largest).batch_sizes
    assert len(sizes) == 3
    assert all(type(size) is int for size in sizes)
    assert all(low <= size <= high for size, (low, high) in zip(sizes, bounds, strict=True))
    assert sum(sizes) >= 1
    assert not sum(sizes) > max(largest, sum(lows))


def test_versions_only_grow_and_equal_sizes_make_no_plan() -> None:
    now = Plan(4, (1, 2))
    assert next_plan((1, 2), now, 9) is None
    assert next_plan((2, 1), now, 3) == Plan(5, (2, 1))
    assert next_plan((2, 1), now, 9) == Plan(10, (2, 1))
    assert next_plan((2, 1), now, LARGEST_VERSION) is None
