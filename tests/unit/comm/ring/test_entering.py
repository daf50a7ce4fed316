"""Workers enter a ring between two rounds: real rings over gloo, whose members are in one process."""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping, Sequence

import pytest

from dynamix_ps.comm.plane import PeerFailure
from dynamix_ps.comm.ring import rounds
from dynamix_ps.comm.ring.group import Over, RingGroup, meet
from dynamix_ps.comm.ring.stores import StoreWatch
from tests.launching import wait_for
from tests.rings import Member, change, come, expect, job, make
from tests.unit.comm.ring.test_elastic import closed_port

pytestmark = pytest.mark.timeout(90)
LONG_S = 1000.0


def enter(newcomer: Member, members: Sequence[Member], number: int, generation: int = 1) -> int:
    """It has the state before this round."""
    newcomer.ring.meet({member.rank: member.ring.address for member in members})
    return newcomer.ring.enter(generation, number, len(members), ())


@pytest.mark.parametrize("place", [0, 3], ids=["the lowest", "the highest"])
def test_a_newcomer_is_in_all_sums_from_one_round_on(place: int) -> None:
    """Where it is the lowest, they meet at its store."""
    with job(4) as members:
        lost = members[place]
        left = [member for member in members if member is not lost]
        change(1, left)
        assert make(left, 0) == {1111 - 10**place}
        newcomer = come(members, place)
        expect(left, [newcomer])
        for member in left:
            member.push(1)
        assert not left[0].wait(0.05), "they wait for it"
        assert enter(newcomer, [*left, newcomer], 1) == 2
        newcomer.push(1)
        assert all(member.wait() and member.sum() == 2222 for member in [*left, newcomer])
        assert make([*left, newcomer], 2) == {3333}


def test_the_same_workers_may_make_a_ring_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a decision, for the same round; and after one has come and left, in the same generation.

    What they have left in a store for a ring before is none of this one.
    """
    made: list[tuple[object, ...]] = []

    def noted(name: str, rank: int, addresses: Mapping[int, str], over: Over) -> RingGroup:
        made.append((name, rank, *sorted(addresses.items())))
        return meet(name, rank, addresses, over)

    monkeypatch.setattr(rounds, "meet", noted)
    with job(3) as members:
        one, other, leaver = founders = list(members)
        change(1, founders)
        wait_for(lambda: all(member.ring._worker.ring is not None for member in founders), "the ring")
        change(2, founders)
        assert make(founders, 0) == {111}
        expect([one, other])
        assert make([one, other], 1) == {22}
        newcomer = come(members, 3)
        expect([one, other], [newcomer])
        enter(newcomer, [one, other, newcomer], 2, generation=2)
        assert make([one, other, newcomer], 2) == {3033}
        expect([one, other])
        assert make([one, other], 3) == {44}
        assert len(set(made)) == len(made) == 3 + 3 + 2 + 3 + 2
        assert leaver.ring.depart(lambda: False)


@pytest.mark.slow
def test_one_that_does_not_come_is_silent_from_when_it_was_taken_in() -> None:
    """Its process is there, and does not answer."""
    with job(2) as members, socket.socket() as deaf:
        one, other = founders = list(members)
        change(1, founders)
        assert make(founders, 0) == {11}
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        addresses = {0: one.ring.address, 1: other.ring.address, 2: f"127.0.0.1:{deaf.getsockname()[1]}"}
        one.ring.rounds.moved_s = -math.inf  # it has long had nothing to wait for
        one.ring.meet(addresses)
        one.ring.expect(3)
        assert one.ring.silent(LONG_S) == frozenset() and not one.ring._watch._asked_s, "there was no time yet"
        wait_for(lambda: one.ring.silent(0.2) == {2}, "the newcomer to count as silent")
        deaf.close()
        wait_for(lambda: not one.ring._watch._asked_s, "the question to end")  # before the interpreter does


def test_nobody_is_told_lost_in_whose_place_another_one_is_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision may come while it is asked who is gone."""
    with job(2) as members:
        one, _ = founders = list(members)
        change(1, founders)
        assert make(founders, 0) == {11}
        worker, gone = one.ring._worker, {1: closed_port()}
        answers = iter([gone, worker.others(), gone, gone])
        monkeypatch.setattr(worker, "others", lambda: next(answers))
        worker.is_broken = True
        assert one.ring.next_loss(0.01) is None
        one.ring._watch = StoreWatch()
        assert one.ring.next_loss(0.01) == PeerFailure("worker", 1)
        worker.is_broken = False


def test_who_is_gone_is_not_silent() -> None:
    """A port that refuses is an answer."""
    watch = StoreWatch()
    assert watch.silent({2: closed_port()}, LONG_S) == frozenset()
    wait_for(lambda: not watch._asked_s, "the answer")


def test_who_is_gone_is_told_once_also_where_another_one_was_in_its_place() -> None:
    watch, first, second = StoreWatch(), closed_port(), closed_port()
    assert (watch.gone({2: first}), watch.gone({2: first})) == (2, None)
    assert (watch.gone({2: second}), watch.gone({2: second})) == (2, None)
