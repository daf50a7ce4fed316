"""The global batch that all workers go for: how it follows the noise scale, and when it stays."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dynamix_ps.policy.stigmergy.total import wanted_total
from dynamix_ps.policy.window_arrays import WindowArrays, arrays_of
from tests.policy_cluster import SmallCluster
from tests.unit.policy.stigmergy.test_supply import supply_of

FIRST = 256  # the first global batch
COMPUTE_S = 0.02 + 64 / 1000


def window_of(reference_batch: float = FIRST, lr_rule: str = "adascale") -> WindowArrays:
    view = SmallCluster([1000] * 4, lr_rule=lr_rule).view()
    return replace(arrays_of(view), reference_batch=np.asarray(reference_batch))


def wanted(noise_scale: float, *, presence: float = 1.0, network_s: float = 0.1, first: float = FIRST) -> float:
    """What four workers of 64 samples each go for."""
    supply = supply_of(*(1000,) * 4, transfers_s=(network_s,) * 4, iteration_s=COMPUTE_S + network_s)
    return wanted_total(supply, window_of(first), noise_scale, presence)


def test_it_grows_with_the_noise_and_never_by_more_than_a_factor_of_two() -> None:
    totals = [wanted(noise_scale) for noise_scale in (10, 300, 3000, 1e6)]
    assert totals == sorted(totals)
    assert totals[0] <= FIRST < totals[2]
    assert 1.5 * FIRST < totals[3] <= 2 * FIRST


def test_it_stays_until_two_windows_are_over() -> None:
    assert wanted(1e6, presence=0.5) == wanted(math.nan, presence=0.5, first=200) == FIRST
    assert wanted(1e6, presence=0.75) > FIRST


def test_without_a_noise_scale_it_is_the_first_one_within_the_bounds() -> None:
    """Not the present one: whole sizes and damped moves would let it drift."""
    assert wanted(math.nan, first=200) == 200
    assert wanted(math.nan, first=1) == 4 * 8


def test_a_total_below_the_first_one_must_promise_half_as_much_again() -> None:
    cheap = wanted(20, network_s=0.0)  # without network time, a smaller one promises little
    assert cheap >= FIRST / 2 ** (1 / 8)
    assert wanted(1.0, network_s=0.0, first=FIRST / 4) < FIRST  # down to the first one it need not


def test_a_good_total_near_the_best_stays() -> None:
    """Progress per second is flat around its best, so neighbours of a good total are no reason to change sizes."""
    noise_scale = 1000.0
    total, window = FIRST * 2.0, window_of()
    for _ in range(20):
        planned = (round(total / 4),) * 4
        compute_s = 0.02 + planned[0] / 1000
        supply = supply_of(*(1000,) * 4, planned=planned, transfers_s=(0.1,) * 4, iteration_s=compute_s + 0.1)
        before, total = total, wanted_total(supply, window, noise_scale, 1.0)
    assert total == pytest.approx(before, abs=4)


def test_it_stays_within_the_bounds_of_the_workers() -> None:
    supply = supply_of(*(1000,) * 4, transfers_s=(0.1,) * 4, iteration_s=COMPUTE_S + 0.1, high=70)
    assert wanted_total(supply, window_of(), 1e6, 1.0) <= 4 * 70


def test_all_workers_go_for_the_same_total_whoever_asks() -> None:
    """Nothing but the field and what is in the sum counts: not the records of the worker that asks."""
    supply = supply_of(*(1000,) * 4, transfers_s=(0.1,) * 4, iteration_s=COMPUTE_S + 0.1)
    one = window_of()
    other = replace(one, compute_s=one.compute_s * 3, loss=one.loss + 1, samples=one.samples * 2)
    assert wanted_total(supply, one, 700.0, 1.0) == wanted_total(supply, other, 700.0, 1.0)
