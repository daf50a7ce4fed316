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
