"""When a joiner may enter: it has caught up, or never will."""

from __future__ import annotations

from dynamix_ps.comm.catching_up import CatchingUp


def rounds(joiner: CatchingUp, count: int) -> None:
    for _ in range(count):
        joiner.keep(10)
        joiner.note()


def test_it_may_enter_when_it_is_one_round_behind_and_then_stays_so() -> None:
    joiner = CatchingUp(most_bytes=1000)
    rounds(joiner, 1)
    assert not joiner.is_ready, "it may still be restoring the state"
    rounds(joiner, 2)
    joiner.taken(1)
    assert not joiner.is_ready, "it is behind"
    joiner.taken(1)
    assert joiner.is_ready
    rounds(joiner, 5)
    assert joiner.is_ready, "the others have voted"


def test_who_never_catches_up_may_enter() -> None:
    joiner = CatchingUp(most_bytes=50)
    rounds(joiner, 5)
    joiner.sent(10)
    rounds(joiner, 1)
    assert not joiner.is_ready
    rounds(joiner, 1)
    assert joiner.is_ready and joiner.is_too_late
    joiner.sent(60)
    assert joiner.is_ready and not joiner.is_too_late, "nobody waits for it any more"


def test_who_is_gone_is_held_up_for_nobody() -> None:
    joiner = CatchingUp(most_bytes=50)
    joiner.end()
    assert joiner.is_over and joiner.is_ready
