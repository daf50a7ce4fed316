"""Exposed network time over several windows."""

from __future__ import annotations

import numpy as np
import pytest

from dynamix_ps.policy.cluster_model.network_times import NetworkTimes

ITERATION_S = np.array(0.2)


def followed(*windows: tuple[float, ...]) -> list[float]:
    times = NetworkTimes(len(windows[0]))
    for seen_s in windows:
        times.observe(np.array(seen_s), ITERATION_S)
    return [float(value) for value in times.seconds]


def test_a_link_that_stays_slow_counts_in_full() -> None:
    assert followed(*[(0.02, 0.02, 0.08)] * 3) == pytest.approx([0.02, 0.02, 0.08])


def test_workers_that_take_turns_at_seeming_quick_stay_alike() -> None:
    """As seen behind one shared link: one of three is quicker by 35 ms in a window, and another in the next."""
    turns = [tuple(0.09 if rank == quick else 0.125 for rank in range(3)) for quick in (0, 1, 2, 2, 0, 1, 0, 2, 1)]
    for last in range(4, len(turns) + 1):
        assert max(followed(*turns[:last])) - min(followed(*turns[:last])) < 0.02


def test_a_link_that_becomes_slow_counts_in_full_after_two_windows_if_much_slower_and_after_some_otherwise() -> None:
    alike = (0.02, 0.02, 0.02)
    much = [followed(*[alike] * 5, *[(0.02, 0.02, 0.14)] * windows)[2] for windows in (1, 2)]
    assert much[0] < 0.1
    assert much[1] == pytest.approx(0.14)
    little = [followed(*[alike] * 5, *[(0.02, 0.02, 0.05)] * windows)[2] for windows in (1, 2, 5)]
    assert little == sorted(little)
    assert little[2] == pytest.approx(0.05, abs=0.003)


def test_what_all_have_in_common_is_taken_at_once_where_it_jumps() -> None:
    assert followed((0.02, 0.02), (0.03, 0.03)) == pytest.approx([0.025, 0.025])
    assert followed((0.02, 0.02), (0.12, 0.12)) == pytest.approx([0.12, 0.12])


def test_what_is_not_known_changes_nothing() -> None:
    unknown = (np.nan, np.nan)
    assert np.isnan(followed(unknown)).all()
    assert followed((0.02, 0.06), unknown) == followed((0.02, 0.06))
    times = NetworkTimes(2, 2)
    times.observe(np.array([[0.02, 0.06], [0.02, 0.06]]), np.array([0.2, 0.2]))
    times.restart(np.array([True, False]))
    assert np.isnan(times.seconds[0]).all()
    assert times.seconds[1] == pytest.approx([0.02, 0.06])
