"""Following exposed network time over windows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dynamix_ps.policy.exposed import ExposedTimes

ITERATION_S, ITERATIONS = np.array(0.2), np.array(10)


def followed(*windows: tuple[float, ...]) -> list[float]:
    times = ExposedTimes(len(windows[0]))
    for seen_s in windows:
        times.observe(np.array(seen_s), ITERATION_S, ITERATIONS)
    return [float(value) for value in times.seconds]


def test_a_link_that_stays_slow_counts_in_full() -> None:
    assert followed(*[(0.02, 0.02, 0.08)] * 3) == pytest.approx([0.02, 0.02, 0.08])


def test_workers_that_take_turns_at_seeming_quick_stay_alike() -> None:
    """As seen behind one shared link: one of three is quicker by 35 ms in a window, and another in the next."""
    turns = [tuple(0.09 if rank == quick else 0.125 for rank in range(3)) for quick in (0, 1, 2, 2, 0, 1, 0, 2, 1)]
    for last in range(4, len(turns) + 1):
        assert max(followed(*turns[:last])) - min(followed(*turns[:last])) < 0.02


def iteration_s(late_s: NDArray[np.float64], *, follow: bool) -> float:
    """Mean iteration of workers with 45 ms of computing each, of (windows, iterations, workers) seconds by which they
    are late; following, each window's work is split so that by the estimate all finish together.
    """
    times, computing_s = ExposedTimes(late_s.shape[-1]), np.full(late_s.shape[-1], 0.045)
    lasted_s = []
    for window in late_s:
        lasted_s.append((computing_s + window).max(axis=-1).mean())
        times.observe(window.mean(axis=0), np.array(lasted_s[-1]), np.array(len(window)))
        if follow:
            computing_s = np.maximum(0.045 + times.seconds.mean() - times.seconds, 0.002)
    return float(np.mean(lasted_s))


def test_a_worker_that_is_late_by_chance_is_followed_as_far_as_it_pays() -> None:
    """Three workers. Late in one iteration of ten: nothing can be won, and following the mean loses 6 %. Always late:
    a third of the iteration can be won. Late by a little always and by much at times: what is always so is won.
    """
    rng = np.random.default_rng(3)
    hits = rng.random((200, 10, 1)) < 0.1
    second = np.array([0.0, 1.0, 0.0])
    seldom, always = 0.2 * hits * second, np.full((200, 10, 1), 0.06) * second
    assert iteration_s(seldom, follow=True) < 1.03 * iteration_s(seldom, follow=False)
    assert iteration_s(always, follow=True) < 0.68 * iteration_s(always, follow=False)
    both = seldom + 0.02 * second
    assert iteration_s(both, follow=True) < 0.92 * iteration_s(both, follow=False)


def test_a_link_that_becomes_slow_counts_in_full_after_two_windows_if_much_slower_and_after_some_otherwise() -> None:
    alike = (0.02, 0.02, 0.02)
    much = [followed(*[alike] * 5, *[(0.02, 0.02, 0.14)] * windows)[2] for windows in (1, 2)]
    assert much[0] < 0.1
    assert much[1] == pytest.approx(0.14)
    little = [followed(*[alike] * 5, *[(0.02, 0.02, 0.05)] * windows)[2] for windows in (1, 2, 12)]
    assert little == sorted(little)
    assert little[2] == pytest.approx(0.05, abs=0.003)


def test_what_all_have_in_common_is_taken_at_once_where_it_jumps() -> None:
    assert followed((0.02, 0.02), (0.03, 0.03)) == pytest.approx([0.025, 0.025])
    assert followed((0.02, 0.02), (0.12, 0.12)) == pytest.approx([0.12, 0.12])


def test_what_is_not_known_changes_nothing() -> None:
    unknown = (np.nan, np.nan)
    assert np.isnan(followed(unknown)).all()
    assert followed((0.02, 0.06), unknown) == followed((0.02, 0.06))
    times = ExposedTimes(2, 2)
    times.observe(np.array([[0.02, 0.06], [0.02, 0.06]]), np.array([0.2, 0.2]), np.array([10, 10]))
    times.restart(np.array([True, False]))
    assert np.isnan(times.seconds[0]).all()
    assert times.seconds[1] == pytest.approx([0.02, 0.06])
