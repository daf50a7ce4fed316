"""Speeds that a run keeps for the next one: the first sizes that follow from them, and when they are off."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.messages import Plan
from dynamix_ps.policy.model.profile import ENOUGH, Profile, ProfileMeter, first_sizes, lateness
from tests.control_plane import record, view

WIDE = ((1, 1024),) * 3
EQUAL = (64, 64, 64)


def profile(*per_sample_s: float, **changes: Any) -> Profile:
    nothing = (0.0,) * len(per_sample_s)
    base = Profile(nothing, per_sample_s, nothing, (None,) * len(per_sample_s), 0.0)
    return dataclasses.replace(base, **changes)


def test_the_global_batch_is_split_so_that_all_finish_together() -> None:
    known = profile(1e-3, 2e-3, 4e-3, fixed_s=(0.01, 0.01, 0.02))
    sizes = first_sizes(known, EQUAL, WIDE, links=False)
    assert sum(sizes) == sum(EQUAL)
    assert np.ptp(known.seconds(sizes)) <= 4e-3, "no more than a sample of the slowest"


@given(
    st.lists(st.floats(1e-6, 10.0), min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(0, 64), st.integers(64, 300)), min_size=3, max_size=3),
    st.booleans(),
)
def test_they_keep_the_global_batch_and_the_bounds(
    per_sample_s: list[float], bounds: list[tuple[int, int]], links: bool
) -> None:
    known = profile(*per_sample_s, network_s=(0.0, 0.5, 0.1), hiding=0.3)
    sizes = first_sizes(known, EQUAL, tuple(bounds), links)
    assert sum(sizes) == sum(EQUAL)
    assert all(low <= size <= high for size, (low, high) in zip(sizes, bounds, strict=True))


def test_what_memory_does_not_hold_goes_to_the_others() -> None:
    known = profile(1e-3, 1e-2, 1e-2)
    assert first_sizes(known, EQUAL, ((1, 80), *WIDE[1:]), links=False) == (80, 56, 56)


@pytest.mark.parametrize("bounds", [((1, 50),) * 3, ((70, 99),) * 3])
def test_bounds_that_forbid_the_global_batch_leave_the_sizes(bounds: tuple[tuple[int, int], ...]) -> None:
    assert first_sizes(profile(1e-3, 1e-3, 9e-3), EQUAL, bounds, links=False) == EQUAL


def test_hardly_another_split_is_none() -> None:
    assert first_sizes(profile(1e-3, 1.02e-3, 1.01e-3), EQUAL, WIDE, links=False) == EQUAL


def test_a_slow_link_counts_for_the_policies_that_know_links() -> None:
    known = profile(1e-3, 1e-3, 1e-3, network_s=(0.01, 0.01, 0.05))
    assert first_sizes(known, EQUAL, WIDE, links=False) == EQUAL
    with_links = first_sizes(known, EQUAL, WIDE, links=True)
    assert with_links[2] < 30 and sum(with_links) == sum(EQUAL)


def test_a_worker_later_than_the_others_makes_it_off() -> None:
    known = profile(1e-3, 1e-3, 4e-3)
    sizes = (85, 86, 21)
    times_s = known.seconds(sizes)
    assert lateness(known, sizes, times_s) == pytest.approx(1)
    assert lateness(known, sizes, 3 * times_s) == pytest.approx(1), "all alike need no other split"
    assert lateness(known, sizes, times_s * (1, 1, 1.5))[2] == pytest.approx(1.5)
    assert lateness(known, sizes, times_s * (2, 1, 1))[0] == pytest.approx(2)
    nan = np.nan
    assert lateness(known, sizes, times_s * (1, nan, 1.5)) == pytest.approx([1 / 1.5, nan, 1.5], nan_ok=True)
    assert np.isnan(lateness(known, sizes, times_s * (1, nan, nan))).all(), "there is nobody to compare it with"


def test_two_workers_are_compared_with_each_other() -> None:
    known = profile(1e-3, 2e-3)
    assert lateness(known, (10, 5), known.seconds((10, 5)) * (0.7, 1.4)) == pytest.approx([0.5, 2])


def measured(windows: int, **changes: Any) -> ProfileMeter:
    """Three workers, of which the last computes a sample in 4 ms, the others in 2; sizes change in between."""
    meter = ProfileMeter(3)
    for window in range(windows):
        sizes = (64, 64, 64) if window % 2 else (80, 80, 32)
        records = [
            record(
                rank, window, plan_version=1, batch_size=size, samples=20 * size, duration_s=6.0,
                compute_s=20 * (0.01 + size * (4e-3 if rank == 2 else 2e-3)), **changes,
            )
            for rank, size in enumerate(sizes)
        ]  # fmt: skip
        meter.observe(view(Plan(1, sizes), [*records]))
    return meter


def test_what_is_measured_is_what_was_made_up() -> None:
    found = measured(12, push_busy=0.1, at_once=50.0).profile(range(3))
    assert found is not None
    assert found.per_sample_s == pytest.approx((2e-3, 2e-3, 4e-3), rel=0.1)
    assert found.fixed_s == pytest.approx((0.01,) * 3, abs=0.005)
    assert found.network_s == pytest.approx((found.network_s[0],) * 3) and found.network_s[0] > 0.02
    assert found.at_once == (50, 50, 50) and 0 <= found.hiding < 1
    assert Profile.of(json.loads(json.dumps(dataclasses.asdict(found))), 3) == found
    alone = measured(12).profile((2,))
    assert alone is not None and alone.at_once == (None,) and alone.per_sample_s == found.per_sample_s[2:]


def test_too_few_windows_make_no_profile() -> None:
    assert measured(ENOUGH - 1).profile(range(3)) is None
    assert measured(ENOUGH).profile(range(3)) is not None


def test_who_went_is_forgotten() -> None:
    meter, sizes = measured(5), (96, 96, 0)
    records = [record(rank, 9, plan_version=2, batch_size=96, samples=1920) for rank in range(2)]
    gone = dataclasses.replace(view(Plan(2, sizes), [*records, None]), bounds=((32, 1024), (32, 1024), (0, 0)))
    meter.observe(gone)
    assert meter.profile(range(3)) is None
    assert meter.profile(range(2)) is not None


GOOD = {
    "fixed_s": [0.0, 0.1],
    "per_sample_s": [1e-3, 2e-3],
    "network_s": [0.0, 1.0],
    "at_once": [None, 8],
    "hiding": 0.5,
}


def test_a_profile_is_read_back() -> None:
    assert Profile.of(GOOD, 2) == Profile((0.0, 0.1), (1e-3, 2e-3), (0.0, 1.0), (None, 8), 0.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"fixed_s": [0.0]},
        {"fixed_s": [0.0, -1.0]},
        {"fixed_s": 3},
        {"per_sample_s": [0.0, 1.0]},
        {"per_sample_s": [1e-3, "1"]},
        {"per_sample_s": "12"},
        {"network_s": [0.0, 1e300]},
        {"network_s": [0.0, float("nan")]},
        {"at_once": [None]},
        {"at_once": [None, 0]},
        {"at_once": [True, 8]},
        {"at_once": 2},
        {"hiding": 1.0},
        {"hiding": None},
    ],
)
def test_what_cannot_be_a_profile_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Profile.of(GOOD | changes, 2)


def test_nothing_may_be_missing() -> None:
    for name in GOOD:
        with pytest.raises(KeyError):
            Profile.of({key: value for key, value in GOOD.items() if key != name}, 2)
