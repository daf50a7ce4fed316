"""Hosts that a job goes on without: what starts when they are back."""

from __future__ import annotations

from dynamix_ps.launch.away_hosts import AwayHosts


def test_a_host_is_reached_once_for_all_roles_that_are_due_there() -> None:
    away = AwayHosts(patience_s=60.0)
    away.add("b")
    assert "b" in away and "c" not in away and away.awaited == []
    assert away.wait_for("b", "worker-1", 2, now_s=100.0)
    assert not away.wait_for("b", "server-1", 1, now_s=120.0)
    assert away.awaited == ["b"] and away.waits_for("server-1") and not away.waits_for("worker-2")
    assert not away.is_late("b", 159.0) and away.is_late("b", 161.0), "from the first one on"
    assert away.back("b") == {"worker-1": 2, "server-1": 1}
    assert "b" not in away and away.awaited == []


def test_a_host_that_is_given_up_stays_away_and_may_be_reached_again() -> None:
    away = AwayHosts(patience_s=60.0)
    assert away.wait_for("b", "worker-1", 1, now_s=0.0)
    assert away.give_up("b") == ["worker-1"]
    assert "b" in away and not away.waits_for("worker-1")
    assert away.wait_for("b", "worker-1", 2, now_s=100.0)
