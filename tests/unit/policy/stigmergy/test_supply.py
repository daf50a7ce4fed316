"""Supply: the sizes with which all workers finish together, and how long an iteration then takes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dynamix_ps.policy.stigmergy.supply import Supply
from dynamix_ps.policy.stigmergy.traces import TraceField

FIXED_S = 0.02


def supply_of(
    *rates_per_s: float,
    transfers_s: tuple[float, ...] | None = None,
    iteration_s: float = math.nan,
    planned: tuple[int, ...] | None = None,
    low: int = 8,
    high: int = 1000,
) -> Supply:
    """Workers with these rates; a rate of 0: the worker is not in the field."""
    n, rates = len(rates_per_s), np.array(rates_per_s, dtype=float)
    present = rates > 0
    transfer_s = np.array(transfers_s or (0.0,) * n)
    field = TraceField(present, present * 1.0, rates, present * FIXED_S, transfer_s, np.zeros(n), np.zeros(n))
    bounds = np.full(n, low), np.full(n, high)
    return Supply(field, np.array(planned or (64,) * n), *bounds, iteration_s)


def test_all_workers_compute_until_the_same_time_and_come_to_the_total() -> None:
    sizes = supply_of(4000, 2000, 1000).sizes(300)
    assert sizes.sum() == pytest.approx(300)
    times_s = FIXED_S + sizes / np.array([4000, 2000, 1000])
    assert times_s == pytest.approx(np.full(3, times_s[0]))


def test_the_others_share_what_a_worker_at_a_bound_cannot_take() -> None:
    assert supply_of(4000, 1000, 1000, high=120).sizes(300).tolist() == pytest.approx([120, 90, 90])
    small = supply_of(4000, 4000, 10, low=20).sizes(220)
    assert small.tolist() == pytest.approx([100, 100, 20])


def test_a_total_beyond_the_bounds_gives_the_bounds() -> None:
    supply = supply_of(4000, 1000, low=10, high=50)
    assert supply.sizes(1000).tolist() == [50, 50]
    assert supply.sizes(1).tolist() == [10, 10]
    assert (supply.smallest, supply.largest) == (20, 100)


def test_who_is_not_in_the_field_gets_nothing_and_counts_for_nothing() -> None:
    supply = supply_of(1000, 0, 1000)
    assert supply.planned == 128
    assert supply.sizes(200).tolist() == pytest.approx([100, 0, 100])


def test_a_worker_behind_a_slow_link_computes_shorter_by_twice_what_its_data_take_longer() -> None:
    """Nothing hides transfers here: an iteration takes exactly the computing and the longest transfer."""
    compute_s = FIXED_S + 64 / 1000
    supply = supply_of(1000, 1000, 1000, transfers_s=(0.01, 0.01, 0.02), iteration_s=compute_s + 0.02)
    sizes = supply.sizes(192)
    times_s = FIXED_S + sizes / 1000
    assert sizes.sum() == pytest.approx(192)
    assert times_s[0] - times_s[2] == pytest.approx(2 * 0.01)
    assert times_s[0] == pytest.approx(times_s[1])
    unknown = supply_of(1000, 1000, 1000, transfers_s=(0.01, 0.01, 0.02))  # how long an iteration takes
    assert unknown.sizes(192).tolist() == pytest.approx([64, 64, 64])


def test_an_iteration_takes_the_computing_and_the_usual_network_time() -> None:
    compute_s = FIXED_S + 64 / 1000
    supply = supply_of(1000, 1000, transfers_s=(0.03, 0.03), iteration_s=compute_s + 0.03)
    assert supply.iteration_s(np.array([128, 256])).tolist() == pytest.approx([compute_s + 0.03, compute_s + 0.094])


def test_all_wait_for_a_slow_worker_at_its_lower_bound() -> None:
    slow_s = FIXED_S + 20 / 10
    assert supply_of(4000, 4000, 10, low=20).iteration_s(np.array([220])).tolist() == pytest.approx([slow_s])


def test_a_slow_link_at_the_lower_bound_does_not_make_the_others_compute_longer() -> None:
    compute_s = FIXED_S + 64 / 1000
    supply = supply_of(1000, 1000, 1000, transfers_s=(0.01, 0.01, 0.5), iteration_s=compute_s + 0.5)
    assert supply.sizes(192).tolist() == pytest.approx([92, 92, 8])
    assert supply.iteration_s(np.array([192]))[0] > 0.5
