"""What is known of a process ends with it."""

from __future__ import annotations

from dynamix_ps.membership.losses import Suspicions
from dynamix_ps.membership.messages import Process

W = [Process("worker", slot, "first") for slot in range(3)]


def test_nobody_waits_for_a_process_that_is_gone() -> None:
    suspicions = Suspicions(confirm_s=0.5, lease_s=5.0)
    for now_s in (0.0, 2.0, 4.0, 6.0):
        suspicions.heard(W[0], now_s)
        suspicions.waits(W[0], frozenset({W[1]}))
        lost = suspicions.confirmed(now_s, set())
    assert lost == (W[1], "its lease ran out while others waited")
    suspicions.forget(W[1])
    assert [suspicions.confirmed(now_s, set()) for now_s in (8.0, 10.0, 12.0, 14.0)] == [None] * 4


def heard_and_waited_for(suspicions: Suspicions, now_s: float) -> None:
    for one in W[:2]:
        suspicions.heard(one, now_s)
        suspicions.waits(one, frozenset(W) - {one})


def test_a_coordinator_that_hears_nobody_loses_nobody() -> None:
    """It is cut off itself. The launcher is beside it, and its word counts."""
    suspicions, launcher = Suspicions(confirm_s=0.5, lease_s=6.0), Process("launcher", 0, "first")
    heard_and_waited_for(suspicions, 0.0)
    for now_s in range(1, 20):
        suspicions.heard(launcher, now_s)
        assert suspicions.confirmed(now_s, awaited=set(W)) is None, f"after {now_s} s"
    suspicions.closed(W[2], launcher, 20.0)
    assert suspicions.confirmed(20.0, awaited=set(W)) == (W[2], "it has exited")


def test_after_all_were_silent_silence_counts_once_they_can_have_come_back() -> None:
    """The coordinator was cut off for 20 s. TCP sends again 20 s after that at the latest."""
    suspicions = Suspicions(confirm_s=0.5, lease_s=6.0)
    heard_and_waited_for(suspicions, 0.0)
    assert [suspicions.confirmed(now_s, awaited={W[1]}) for now_s in range(20)] == [None] * 20
    lost = {}
    for now_s in range(20, 50):
        suspicions.heard(W[0], now_s)
        lost[now_s] = suspicions.confirmed(now_s, awaited={W[1]})
    first = min(now_s for now_s in lost if lost[now_s])
    assert (first, lost[first]) == (46, (W[1], "its lease ran out while others waited"))


def test_who_was_heard_again_has_a_lease_as_always() -> None:
    suspicions = Suspicions(confirm_s=0.5, lease_s=6.0)
    heard_and_waited_for(suspicions, 0.0)
    assert [suspicions.confirmed(now_s, awaited=set()) for now_s in range(20)] == [None] * 20
    heard_and_waited_for(suspicions, 20.0)
    for now_s in range(20, 27):
        suspicions.heard(W[0], now_s)
        assert suspicions.confirmed(now_s, awaited=set()) is None
    suspicions.heard(W[0], 27.0)
    assert suspicions.confirmed(27.0, awaited=set()) == (W[1], "its lease ran out while others waited")
