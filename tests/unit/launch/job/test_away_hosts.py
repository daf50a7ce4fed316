"""Hosts that a job goes on without: when they are reached again, and what starts when they are back."""

from __future__ import annotations

from dynamix_ps.launch.job.away_hosts import AwayHosts
from dynamix_ps.launch.job.restarts import FIRST_WAIT_S, LONGEST_WAIT_S


def test_a_host_is_reached_once_for_all_roles_that_are_due_there() -> None:
    away = AwayHosts(patience_s=60.0)
    away.add("b", now_s=90.0)
    assert "b" in away and "c" not in away and away.to_reach(100.0) == [], "nothing is due there"
    away.wait_for("b", "worker-1", 2)
    assert away.waits_for("worker-1") and away.awaited == []
    assert away.to_reach(100.0) == ["b"] == away.awaited
    away.wait_for("b", "server-1", 1)
    assert away.to_reach(120.0) == [], "it is being reached"
    assert away.waits_for("server-1") and not away.waits_for("worker-2")
    assert not away.is_late("b", 159.0) and away.is_late("b", 161.0), "from the first one on"
    assert away.back("b") == {"worker-1": 2, "server-1": 1}
    assert "b" not in away and away.awaited == [] and away.to_reach(200.0) == []


def test_a_host_that_is_given_up_stays_away_and_may_be_reached_again() -> None:
    away = AwayHosts(patience_s=60.0)
    away.wait_for("b", "worker-1", 1)
    assert away.to_reach(0.0) == ["b"], "it was not lost: it left"
    assert away.give_up("b", 10.0) == ["worker-1"]
    assert "b" in away and not away.waits_for("worker-1") and away.to_reach(1000.0) == []
    away.wait_for("b", "worker-1", 2)
    assert away.to_reach(1000.0) == ["b"]


def test_the_wait_of_a_host_doubles_with_each_failure_however_many_roles_are_due_there() -> None:
    away = AwayHosts(patience_s=60.0)
    away.add("b", now_s=100.0)
    for made in range(8):
        wait_s = min(FIRST_WAIT_S * 2.0**made, LONGEST_WAIT_S)
        for rank in range(4):  # each of them due at another time
            away.wait_for("b", f"worker-{rank}", 1)
            assert away.to_reach(100.0 + wait_s * rank / 4) == []
        assert away.to_reach(100.0 + wait_s) == ["b"]
        assert len(away.give_up("b", 100.0)) == 4
    away.add("c", now_s=100.0)
    away.wait_for("c", "worker-4", 1)
    assert away.to_reach(100.0 + FIRST_WAIT_S) == ["c"], "each host for itself"


def test_a_host_that_is_lost_soon_after_it_was_back_waits_longer() -> None:
    away = AwayHosts(patience_s=60.0)
    for made in range(3):
        away.add("b", now_s=0.0)
        away.wait_for("b", "worker-1", made)
        assert away.to_reach(FIRST_WAIT_S * 2.0**made - 0.1) == []
        assert away.to_reach(FIRST_WAIT_S * 2.0**made) == ["b"]
        away.back("b")


def test_a_role_that_is_to_start_on_another_host_is_due_there_alone() -> None:
    away = AwayHosts(patience_s=60.0)
    away.wait_for("b", "worker-1", 1)
    away.wait_for("b", "worker-2", 1)
    for role in ("worker-1", "worker-3"):
        away.expect("c", role)
    assert "c" in away and away.waits_for("worker-1") and not away.waits_for("worker-3")
    assert away.to_reach(0.0) == ["b", "c"]
    assert (away.back("b"), away.back("c")) == ({"worker-2": 1}, {"worker-1": 1})


def test_a_user_has_a_host_reached_at_once() -> None:
    away = AwayHosts(patience_s=60.0)
    away.add("b", now_s=0.0)
    away.wait_for("b", "worker-1", 1)
    assert away.to_reach(0.0) == []
    away.at_once("b")
    assert away.to_reach(0.0) == ["b"]
    away.at_once("b")
    assert away.to_reach(0.0) == [], "it is being reached"
    away.give_up("b", 0.0)
    away.wait_for("b", "worker-1", 2)
    assert away.to_reach(FIRST_WAIT_S) == [], "that was for once"
