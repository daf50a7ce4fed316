from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.arbitrator.windows import LASTING, MAX_AHEAD, MAX_OPEN_WINDOWS, ClosedWindow, Windows
from tests.control_plane import record

LEASE_S = 5.0
NOBODY: frozenset[int] = frozenset()


def test_ready_when_all_have_reported_and_only_once() -> None:
    windows = Windows(2)
    assert windows.add(record(0, 0), 0.0)
    assert windows.ready(NOBODY, LEASE_S, 0.1) is None
    assert windows.add(record(1, 0), 0.2)
    closed = windows.ready(NOBODY, LEASE_S, 0.2)
    assert closed == ClosedWindow(0, (record(0, 0), record(1, 0)), timed_out=False)
    assert windows.ready(NOBODY, LEASE_S, 100.0) is None


def test_duplicates_and_late_reports_change_nothing() -> None:
    windows = Windows(2)
    windows.add(record(0, 1, loss=1.0), 0.0)
    assert not windows.add(record(0, 1, loss=9.0), 0.1)
    windows.add(record(1, 1), 0.2)
    closed = windows.ready(NOBODY, LEASE_S, 0.2)
    assert closed is not None
    assert closed.records[0] == record(0, 1, loss=1.0)
    assert not windows.add(record(0, 1), 0.3)
    assert not windows.add(record(0, 0), 0.3)


def test_windows_that_one_worker_numbers_otherwise_are_told() -> None:
    windows = Windows(3)
    told = []
    for number in range(100):
        now_s = 0.1 * number
        for one in (record(0, 50 + number), record(1, 50 + number), record(2, number)):
            windows.add(one, now_s, lambda: frozenset(range(3)))
        assert windows.ready(NOBODY, LEASE_S, now_s) is None
        told.append(windows.overdue(NOBODY, LEASE_S, now_s))
    assert not any(told[:50]) and all(told[52:])
    assert told[-1] == "the newest window is 149, and worker 2 has reported up to 99"
    assert windows.overdue(frozenset({2}), LEASE_S, 10.0).endswith("no window has come from all workers")
    assert windows.ready(frozenset({2}), LEASE_S, 10.0) is not None
    assert not windows.overdue(NOBODY, LEASE_S, 100.0), "one was closed"


def test_absent_workers_are_not_waited_for() -> None:
    windows = Windows(3)
    windows.add(record(0, 0), 0.0)
    windows.add(record(2, 0), 0.0)
    closed = windows.ready(frozenset({1}), LEASE_S, 0.0)
    assert closed is not None
    assert [r is None for r in closed.records] == [False, True, False]
    assert not closed.timed_out


def test_deadline_counts_from_the_first_report() -> None:
    windows = Windows(2)
    windows.add(record(0, 0), 10.0)
    assert windows.ready(NOBODY, LEASE_S, 15.0) is None
    closed = windows.ready(NOBODY, LEASE_S, 15.1)
    assert closed is not None
    assert closed.timed_out


def test_one_wrong_duration_does_not_stretch_the_deadline() -> None:
    windows = Windows(3)
    for rank, duration_s in enumerate((1.0, 1e8, 1.0)):
        windows.add(record(rank, 0, duration_s=duration_s), 0.0)
    assert windows.ready(NOBODY, LEASE_S, 0.0) is not None
    windows.add(record(0, 1), 0.0)
    assert windows.ready(NOBODY, LEASE_S, LEASE_S + 0.1) is not None


def test_deadline_stretches_with_the_last_window() -> None:
    windows = Windows(2)
    for rank in range(2):
        windows.add(record(rank, 0, duration_s=30.0), 0.0)
    assert windows.ready(NOBODY, LEASE_S, 0.0) is not None
    windows.add(record(0, 1), 100.0)
    assert windows.ready(NOBODY, LEASE_S, 159.0) is None
    assert windows.ready(NOBODY, LEASE_S, 161.0) is not None


def test_a_later_complete_window_closes_the_ones_before() -> None:
    windows = Windows(2)
    windows.add(record(0, 0), 0.0)
    for rank in range(2):
        windows.add(record(rank, 1), 1.0)
    closed = windows.ready(NOBODY, LEASE_S, 1.0)
    assert closed is not None
    assert closed.window == 1
    assert not windows.add(record(1, 0), 1.1)
    assert windows.ready(NOBODY, LEASE_S, 99.0) is None


def test_resumes_after_the_window_decided_last() -> None:
    windows = Windows(1, closed=7)
    assert not windows.add(record(0, 7), 0.0)
    assert windows.add(record(0, 8), 0.0)


def test_open_windows_are_bounded() -> None:
    windows = Windows(2)
    for window in range(10_000):
        windows.add(record(0, window), 0.0)
    assert len(windows._open) == MAX_OPEN_WINDOWS
    assert not windows.add(record(0, 3), 0.0)


@given(seed=st.integers(0, 10_000), workers=st.integers(1, 4), count=st.integers(1, 6))
def test_duplicates_and_reordering_within_the_open_windows_change_no_decision(
    seed: int, workers: int, count: int
) -> None:
    """Whatever is repeated or delayed, windows close in order, once, with each worker's first record."""
    rng = random.Random(seed)
    sent = [record(rank, window) for window in range(count) for rank in range(workers)]
    shuffled = sorted(sent * 2, key=lambda r: (r.window + rng.uniform(0, 1.5), rng.random()))
    windows, closed = Windows(workers), []
    for arrival, item in enumerate(shuffled):
        windows.add(item, float(arrival) / 1000)
        found = windows.ready(NOBODY, LEASE_S, float(arrival) / 1000)
        if found is not None:
            closed.append(found)
    numbers = [item.window for item in closed]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == count - 1
    for item in closed:
        assert item.records == tuple(record(rank, item.window) for rank in range(workers))


def all_three() -> frozenset[int]:
    return frozenset({0, 1, 2})


def both() -> frozenset[int]:
    return frozenset({0, 1})


def test_a_window_far_ahead_of_all_others_waits_for_another_worker() -> None:
    windows = Windows(3)
    assert not windows.add(record(0, 2**53), 0.0, all_three)
    assert windows.ready(NOBODY, LEASE_S, 1e9) is None, "nothing closes by it"
    for rank in range(3):
        assert windows.add(record(rank, 0), 0.0, all_three)
    assert windows.ready(NOBODY, LEASE_S, 0.0) == ClosedWindow(0, tuple(record(r, 0) for r in range(3)), False)


def test_all_workers_may_be_far_ahead_after_an_outage_and_no_record_is_lost() -> None:
    windows = Windows(3, closed=7)
    assert not windows.add(record(0, 900), 0.0, all_three)
    assert windows.add(record(1, 900), 0.0, all_three)
    assert windows.add(record(2, 900), 0.0, all_three)
    closed = windows.ready(NOBODY, LEASE_S, 0.0)
    assert closed == ClosedWindow(900, tuple(record(rank, 900) for rank in range(3)), timed_out=False)


def test_one_worker_leads_by_a_few_windows_at_most() -> None:
    windows = Windows(2)
    led = [windows.add(record(0, window), 0.0, both) for window in range(MAX_AHEAD + LASTING)]
    assert led == [True] * (MAX_AHEAD + 1) + [False] * (LASTING - 1)
    assert windows.add(record(1, 0), 0.0, both)


def test_a_worker_that_is_the_only_one_to_report_is_believed_after_a_while() -> None:
    windows = Windows(2, closed=3)
    reported = [windows.add(record(0, window), 0.0, both) for window in range(100, 100 + LASTING)]
    assert reported == [False] * (LASTING - 1) + [True]
    closed = windows.ready(NOBODY, LEASE_S, LEASE_S + 1.0)
    assert closed is not None
    assert (closed.window, closed.timed_out) == (99 + LASTING, True)


def test_the_last_worker_that_is_left_may_be_far_ahead() -> None:
    windows = Windows(2)
    assert windows.add(record(0, 500), 0.0, lambda: frozenset({0}))
