"""Network times of a window, and over several windows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dynamix_ps.messages import Plan
from dynamix_ps.policy.model.network_times import NetworkTimes, WindowNetworkTimes, network_of, typical
from dynamix_ps.policy.window_arrays import arrays_of
from tests.control_plane import record, view

ITERATION_S = np.array(0.2)


def network(iteration_s: float, compute_s: tuple[float, ...], transfer_s: tuple[float, ...]) -> WindowNetworkTimes:
    """Of a window of 20 iterations."""
    records = [
        record(rank, duration_s=20 * iteration_s, push_busy=each_s / iteration_s)
        for rank, each_s in enumerate(transfer_s)
    ]
    window = arrays_of(view(Plan(0, (64,) * len(compute_s)), list(records)))
    return network_of(window, np.array(compute_s))


def test_the_longest_chain_tells_what_part_of_computing_hides_the_network() -> None:
    # the second worker is halfway to the first at 0.15 s, and 0.3 * 0.15 s of its transfer are hidden
    found = network(0.305, (0.2, 0.1), (0.05, 0.2))
    assert found.hiding == pytest.approx(0.3)
    assert found.exposed_s == pytest.approx([0.0, 0.155])
    assert found.network_s == pytest.approx([0.05, 0.2])


@pytest.mark.parametrize("slow_s", [0.1, 0.15, 0.2])
def test_how_slowly_somebody_computes_does_not_change_what_the_network_needs(slow_s: float) -> None:
    compute_s, transfer_s = np.array([slow_s, 0.1, 0.1]), np.array([0.05, 0.05, 0.12])
    halfway_s = (compute_s + slow_s) / 2
    iteration_s = float((halfway_s + np.maximum(transfer_s - 0.25 * halfway_s, 0)).max())
    found = network(iteration_s, tuple(compute_s), tuple(transfer_s))
    assert found.network_s == pytest.approx(transfer_s)
    assert found.hiding == pytest.approx(0.25)


def test_computing_hides_no_more_than_its_backward_pass() -> None:
    found = network(0.1, (0.1, 0.1), (0.09, 0.09))
    assert found.hiding == pytest.approx(2 / 3)
    assert found.exposed_s == pytest.approx([0.09 - 0.1 * 2 / 3] * 2)


def test_what_transfers_do_not_explain_counts_for_all_alike() -> None:
    found = network(0.3, (0.1, 0.05), (math.nan, math.nan))
    assert (found.network_s.tolist(), float(found.hiding)) == (pytest.approx([0.2, 0.2]), 0.0)
    found = network(0.3, (0.1, math.nan), (0.15, 0.1))
    assert found.exposed_s == pytest.approx([0.2, math.nan], nan_ok=True)
    assert np.isnan(found.network_s[1])


def test_at_most_half_of_the_weights_lie_beyond_what_is_typical() -> None:
    values = np.array([[0.3, 0.1, 0.2], [0.3, 0.1, 0.2]])
    assert typical(values, np.array([[1.0, 1, 1], [5.0, 1, 1]])).tolist() == [0.2, 0.3]
    assert typical(np.array([1.0, 2.0]), np.array([1.0, 1.0])) == 1.0


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


def test_a_link_that_is_slow_in_one_window_and_quick_in_the_next_has_not_changed() -> None:
    usual, slow, quick = ((0.12, 0.12, third_s) for third_s in (0.12, 0.24, 0.0))
    assert followed(*[usual] * 5, slow, quick)[2] > 0.05


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
    times.forget(np.array([[False, False], [True, False]]))
    assert np.isnan(times.seconds[1, 0]) and times.seconds[1, 1] == pytest.approx(0.06)
