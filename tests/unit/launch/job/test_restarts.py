from __future__ import annotations

from dynamix_ps.launch.job.restarts import (
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    MOST_KEPT_OUT,
    RestartBudget,
    Restarts,
    wait_before_start_s,
)


def test_each_worker_is_started_again_so_often_and_waits_longer_each_time() -> None:
    restarts = Restarts(most=3)
    for number, wait_s in enumerate((FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S), start=1):
        restarts.ended("worker-2", 100.0)
        assert restarts.due(100.0 + wait_s - 0.01) == {}
        assert restarts.due(100.0 + wait_s) == {"worker-2": number}
        assert restarts.due(1000.0) == {}, "once"
    restarts.ended("worker-2", 100.0)
    assert restarts.due(1000.0) == {}, "not more often"
    restarts.ended("worker-0", 200.0)
    assert restarts.due(200.0 + FIRST_WAIT_S) == {"worker-0": 1}, "each for itself"


def test_a_user_may_start_one_again_at_once_and_more_often() -> None:
    restarts = Restarts(most=1)
    restarts.ended("worker-1", 100.0)
    restarts.at_once("worker-1")
    assert restarts.due(100.0) == {"worker-1": 1}
    restarts.at_once("worker-1")
    assert restarts.due(100.0) == {"worker-1": 2}


def test_one_that_others_keep_from_entering_is_started_again_without_counting_so_often_in_a_row() -> None:
    restarts = Restarts(most=1)
    restarts.at_once("worker-1")
    assert restarts.due(0.0) == {"worker-1": 1}
    for number in range(1, MOST_KEPT_OUT + 1):
        assert restarts.kept_out("worker-1", 100.0)
        wait_s = min(FIRST_WAIT_S * 2**number, LONGEST_WAIT_S)
        assert restarts.due(100.0 + wait_s - 0.01) == {}, "it may fail by its own fault"
        assert restarts.due(100.0 + wait_s) == {"worker-1": number + 1}
    assert not restarts.kept_out("worker-1", 200.0)
    assert restarts.due(1000.0) == {"worker-1": MOST_KEPT_OUT + 2}, "this one counts"
    restarts.ended("worker-1", 2000.0)
    assert restarts.due(3000.0) == {}, "and was the last one"


def test_without_restarts_one_that_a_user_has_started_may_be_kept_from_entering() -> None:
    restarts = Restarts(most=0)
    for _ in range(2):
        restarts.at_once("worker-1")
        restarts.due(0.0)
        assert [restarts.kept_out("worker-1", 0.0) for _ in range(MOST_KEPT_OUT)] == [True] * MOST_KEPT_OUT
        restarts.due(1000.0)
        assert not restarts.kept_out("worker-1", 0.0)
        assert restarts.due(1000.0) == {}


def test_the_longest_wait() -> None:
    restarts = Restarts(most=1000)
    for number in range(1, 20):
        restarts.ended("worker-0", 0.0)
        assert restarts.due(LONGEST_WAIT_S) == {"worker-0": number}


def test_the_wait_stays_the_longest_after_thousands_of_starts() -> None:
    assert wait_before_start_s(10_000) == LONGEST_WAIT_S


def test_without_restarts_nobody_is_started_again() -> None:
    restarts = Restarts(most=0)
    restarts.ended("worker-0", 0.0)
    assert restarts.due(1000.0) == {}


def test_delays_of_a_role_that_every_job_needs_double_and_the_budget_ends() -> None:
    budget = RestartBudget(restarts=4, window_s=60, first_delay_s=0.5)
    assert [budget.next_delay_s(now) for now in (0.0, 1.0, 2.0, 3.0, 4.0)] == [0.5, 1.0, 2.0, 4.0, None]


def test_what_lies_long_ago_is_forgotten() -> None:
    budget = RestartBudget(restarts=2, window_s=60, first_delay_s=0.5)
    assert [budget.next_delay_s(now) for now in (0.0, 30.0)] == [0.5, 1.0]
    assert budget.next_delay_s(59.9) is None
    assert budget.next_delay_s(60.0) == 1.0
    assert budget.next_delay_s(200.0) == 0.5
