"""Moves: damped by how many would move, limited without an alarm, and rounded by chance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.policy.stigmergy.moves import (
    draws_of,
    growth_of,
    is_outside,
    largest_move,
    lateness_of,
    next_sizes,
    share_of_way,
)
from dynamix_ps.policy.stigmergy.settings import CALM, StigmergySettings
from dynamix_ps.policy.stigmergy.traces import TraceField

SETTINGS = StigmergySettings(crowding=0.5, dead_band=0.02)
sizes_of_workers = st.lists(st.integers(1, 4000), min_size=1, max_size=6)


def field_with(lateness: list[float], alarm: float = 0.0, present: list[bool] | None = None) -> TraceField:
    n = len(lateness)
    there = np.array(present or [True] * n)
    return TraceField(there, there * 1.0, np.ones(n), np.zeros(n), np.zeros(n), np.full(n, alarm), np.array(lateness))


def test_the_more_workers_would_move_the_smaller_is_the_share_of_the_way() -> None:
    shares = [share_of_way(field_with([0.3] * movers + [0.01] * (4 - movers)), SETTINGS) for movers in range(5)]
    assert shares == pytest.approx([1, 1 / 1.125, 1 / 1.25, 1 / 1.375, 1 / 1.5])
    assert share_of_way(field_with([-0.3, 0.0]), SETTINGS) == pytest.approx(1 / 1.25)  # who is early would move too


def test_workers_that_are_not_there_do_not_count() -> None:
    assert share_of_way(field_with([0.3, 0.0, 0.0], present=[True, False, False]), SETTINGS) == pytest.approx(1 / 1.5)
    assert share_of_way(field_with([0.3], present=[False]), SETTINGS) == 0


def test_without_an_alarm_moves_are_small() -> None:
    assert largest_move(field_with([0.0])) == CALM == pytest.approx(math.log(1.03))
    assert largest_move(field_with([0.0], alarm=1.5)) == 1.5


@given(sizes_of_workers, st.floats(-5, 5), st.integers(0, 1000))
def test_no_calm_move_exceeds_three_percent_or_one_sample(planned: list[int], move: float, window: int) -> None:
    now, n = np.array(planned), len(planned)
    draws = draws_of(7, window, range(n), n)
    new = next_sizes(now, np.zeros(n, int), np.full(n, 5000), np.full(n, move), np.ones(n, bool), CALM, draws)
    assert (np.abs(new - now) <= np.maximum(0.03 * now, 1)).all()
    assert (np.sign(new - now) * np.sign(move) >= 0).all()


@given(sizes_of_workers, st.floats(-5, 5), st.floats(0, 3))
def test_sizes_stay_within_their_bounds(planned: list[int], move: float, limit: float) -> None:
    n = len(planned)
    low, high = np.full(n, 30), np.full(n, 2000)
    moves, draws = np.full(n, move), np.full(n, 0.5)
    new = next_sizes(np.array(planned), low, high, moves, np.arange(n) % 2 == 0, limit, draws)
    assert ((new >= low) & (new <= high)).all()


def test_an_alarm_sets_moves_free() -> None:
    one = np.array([100])
    new = next_sizes(one, one * 0, one * 10, np.log([3.0]), one > 0, 2.0, np.full(1, 0.5))
    assert new.tolist() == [300]


def test_who_does_not_move_stays_unless_its_bounds_have_moved() -> None:
    planned, low, high = np.array([100, 100]), np.array([0, 0]), np.array([200, 80])
    new = next_sizes(planned, low, high, np.log([2.0, 2.0]), np.zeros(2, bool), 2.0, np.zeros(2))
    assert new.tolist() == [100, 80]


def test_small_differences_are_no_reason_to_move() -> None:
    planned = np.array([1000, 1000, 20, 20])
    undamped = np.array([0.019, -0.021, 0.03, 0.05])  # of 20, 0.03 is 0.6 samples
    assert is_outside(planned, undamped, SETTINGS).tolist() == [False, True, False, True]


def test_rounding_is_by_chance_and_right_in_the_mean() -> None:
    planned, n = np.array([20] * 2000), 2000
    draws = draws_of(3, 5, range(n), n)
    new = next_sizes(planned, planned * 0, planned * 9, np.log(np.full(n, 20.3 / 20)), planned > 0, 1.0, draws)
    assert set(new.tolist()) == {20, 21}
    assert new.mean() == pytest.approx(20.3, abs=0.04)


def test_a_worker_without_samples_comes_back() -> None:
    none, undamped = np.array([0]), np.log([10.0])  # it would like five samples
    assert is_outside(none, undamped, SETTINGS).tolist() == [True]
    assert is_outside(none, -undamped, SETTINGS).tolist() == [False]
    new = next_sizes(none, none, none + 100, undamped, none == 0, 2.0, np.zeros(1))
    assert 0 < new[0] <= 5


def test_the_same_seed_window_and_rank_give_the_same_number_and_others_another() -> None:
    both = draws_of(1, 2, range(4), 4)
    assert draws_of(1, 2, [2], 4).tolist() == [0, 0, both[2], 0]
    numbers = [*both, draws_of(2, 2, [0], 4)[0], draws_of(1, 3, [0], 4)[0]]
    assert len(set(numbers)) == 6
    assert all(0 <= number < 1 for number in numbers)


def test_growth_is_limited_and_nothing_where_there_are_no_samples() -> None:
    assert growth_of(500, 100, 3.0) == pytest.approx(math.log(2))
    assert growth_of(50, 100, CALM) == -CALM
    assert growth_of(101, 100, CALM) == pytest.approx(math.log(1.01))
    assert growth_of(100, 0, 1.0) == growth_of(0, 100, 1.0) == 0


def test_lateness_is_beyond_what_all_have_alike() -> None:
    planned, growth = np.array([100, 100, 0]), math.log(1.5)
    lateness = lateness_of(planned, np.array([150.0, 75, 0]), growth)
    assert lateness.tolist() == pytest.approx([0, math.log(2), growth])
