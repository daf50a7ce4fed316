from __future__ import annotations

from dynamix_ps.launch.restarts import FIRST_WAIT_S, LONGEST_WAIT_S, Restarts


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


def test_the_longest_wait() -> None:
    restarts = Restarts(most=1000)
    for number in range(1, 20):
        restarts.ended("worker-0", 0.0)
        assert restarts.due(LONGEST_WAIT_S) == {"worker-0": number}


def test_without_restarts_nobody_is_started_again() -> None:
    restarts = Restarts(most=0)
    restarts.ended("worker-0", 0.0)
    assert restarts.due(1000.0) == {}
