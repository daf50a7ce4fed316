"""Workers enter a ring while others are lost: each with its real sums and its real part in changes of membership."""

from __future__ import annotations

import queue

import pytest

from dynamix_ps.config.schema import Timeouts
from dynamix_ps.errors import PeerLostError
from dynamix_ps.membership.messages import Finish, Freeze, Leave, Process, Processes, Ready, Resume, Status
from dynamix_ps.rpc.access import ArbitratorAccess
from tests.rings import PATIENCE_S, Member, come, job
from tests.unit.worker_hooks.test_leaving_a_ring import Told, Worker, founded
from worker_hooks.membership.member import WorkerMember

pytestmark = pytest.mark.timeout(90)
NOBODY: Processes = frozenset()


class Newcomer:
    """One that comes while the others train, and has heard of the generation that they are in."""

    def __init__(self, members: list[Member], rank: int, founders: list[Worker], name: str = "second") -> None:
        self.sums, self.told = come(members, rank), Told()
        self.process = Process("worker", rank, name, self.sums.ring.address, "127.0.0.1:1")
        self.replaced: queue.SimpleQueue[str] = queue.SimpleQueue()
        access = ArbitratorAccess("127.0.0.1:1", "r", "t", Timeouts())
        self.hears = WorkerMember(
            access, self.process, self.sums.ring, len(founders), replaced=self.replaced.put, late=True
        )
        self.hears._member = self.hears._watch = self.told  # type: ignore[assignment]
        everybody = frozenset(worker.process for worker in founders)
        self.hears._act(Resume(1, 0, NOBODY, NOBODY, founders=everybody))

    def enters(self, giver: Worker, others: list[Worker], number: int) -> None:
        """The giver has taken it in and given it the state before this round; these others have taken it in, too."""
        self.hears.begin(giver.hears.take_in([self.process]), number)
        for other in others:
            other.hears.take_in([self.process])


def decide(named: dict[Worker | Newcomer, int | None], lost: Worker) -> None:
    """These have named a round, or none, and hear what is decided."""
    for one, number in named.items():
        assert one.hears._act(Freeze(2)) == [Status(2, number)]
    first = max(number for number in named.values() if number is not None)
    without_state = frozenset(one.process for one, number in named.items() if number is None)
    for one in named:
        one.hears._act(Resume(2, first, frozenset({lost.process}), NOBODY, without_state=without_state))


def make(workers: list[Worker | Newcomer], turn: int) -> set[int]:
    """All make a round, which is to be the same on all."""
    for worker in workers:
        worker.sums.push(turn)
    assert all(worker.sums.wait() for worker in workers)
    return {worker.sums.sum() for worker in workers}


def test_it_enters_and_is_a_member_like_others() -> None:
    with job() as members:
        one, other, lost = founders = founded(members)
        assert make([*founders], 0) == {111}
        newcomer = Newcomer(members, 3, founders)
        newcomer.enters(one, [other, lost], 1)
        assert newcomer.told.kept == [Ready()]
        assert make([*founders, newcomer], 1) == {2222}
        for worker in (one, other, newcomer):
            worker.sums.push(2)
        decide({one: 2, other: 2, newcomer: 2}, lost)
        assert all(worker.sums.wait() for worker in (one, other, newcomer))
        assert {worker.sums.sum() for worker in (one, other, newcomer)} == {3033}
        assert newcomer.replaced.empty()


def test_the_giver_is_lost_and_it_alone_had_the_round_before() -> None:
    """The newcomer has the state after that round, and the others make the round anew without the giver."""
    with job() as members:
        giver, one, other = founders = founded(members)
        for worker in founders:
            worker.sums.push(0)
        assert giver.sums.wait()
        newcomer = Newcomer(members, 3, founders)
        newcomer.enters(giver, [], 1)
        newcomer.sums.push(1)
        decide({one: 0, other: 0, newcomer: None}, giver)
        assert "must be started again" in newcomer.replaced.get(timeout=PATIENCE_S)
        assert one.sums.wait() and other.sums.wait() and {one.sums.sum(), other.sums.sum()} == {110}
        for worker in (one, other):
            worker.hears._act(Resume(3, 1, frozenset({giver.process}), NOBODY))  # which knows of no newcomer
            planned = worker.hears.take_in([newcomer.process])  # as was voted
            assert sorted(planned.workers) == [one.process, other.process]
        assert make([one, other], 1) == {220}


def test_it_does_not_begin_while_a_decision_is_under_way() -> None:
    """It has named no round in it, so the others go on without it."""
    with job(2) as members:
        founders = founded(members)
        newcomer = Newcomer(members, 2, founders)
        planned = founders[0].hears.take_in([newcomer.process])
        assert newcomer.hears._act(Freeze(2)) == [Status(2, None)]
        with pytest.raises(PeerLostError, match="must be started again"):
            newcomer.hears.begin(planned, 0)


def test_one_that_has_not_entered_ends_at_once_without_a_word_or_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody counts on it, and it has no state."""
    with job(2) as members:
        newcomer = Newcomer(members, 2, founded(members))
        newcomer.hears._act(Finish("too few are left"))
        assert newcomer.replaced.get(timeout=PATIENCE_S) == "too few are left"
        monkeypatch.setattr(newcomer.sums.ring, "depart", lambda over: pytest.fail("it waits for others"))
        newcomer.told.last = Leave()
        newcomer.hears.close()
        assert newcomer.told.last is None


def test_it_has_the_place_of_one_that_has_left() -> None:
    with job() as members:
        one, other, leaver = founders = founded(members)
        assert make([*founders], 0) == {111}
        for worker in (one, other):
            worker.hears.others_left([leaver.rank])
        assert make([one, other], 1) == {22}
        newcomer = Newcomer(members, leaver.rank, founders)
        newcomer.enters(one, [other], 2)
        assert make([one, other, newcomer], 2) == {333}


@pytest.mark.parametrize("taken_in", [False, True], ids=["voted in", "taken in"])
def test_another_is_lost_before_it_has_the_state(taken_in: bool) -> None:
    with job() as members:
        one, other, lost = founders = founded(members)
        assert make([*founders], 0) == {111}
        newcomer = Newcomer(members, 3, founders)
        for worker in (one, other) if taken_in else ():
            worker.hears.take_in([newcomer.process])
        for worker in (one, other):
            worker.sums.push(1)
        decide({one: 1, other: 1, newcomer: None}, lost)
        assert "must be started again" in newcomer.replaced.get(timeout=PATIENCE_S)
        assert one.sums.wait() and other.sums.wait() and {one.sums.sum(), other.sums.sum()} == {22}
        assert make([one, other], 2) == {33}


def test_another_is_lost_before_it_has_completed_a_round_that_others_have() -> None:
    """Its part counts in this round, and it is in none after it."""
    with job() as members:
        ahead, behind, lost = founders = founded(members)
        assert make([*founders], 0) == {111}
        newcomer = Newcomer(members, 3, founders)
        newcomer.enters(ahead, [behind, lost], 1)
        for worker in (*founders, newcomer):
            worker.sums.push(1)
        assert ahead.sums.wait() and ahead.sums.sum() == 2222
        ahead.sums.clear()
        ahead.sums.push(2)
        decide({ahead: 2, behind: 1, newcomer: None}, lost)
        assert "must be started again" in newcomer.replaced.get(timeout=PATIENCE_S)
        assert behind.sums.wait() and behind.sums.sum() == 2222
        behind.sums.push(2)
        assert ahead.sums.wait() and behind.sums.wait() and {ahead.sums.sum(), behind.sums.sum()} == {33}


def test_what_is_decided_later_concerns_it_when_it_comes_again() -> None:
    with job(2) as members:
        one, other = founders = founded(members)
        assert make([*founders], 0) == {11}
        first = Newcomer(members, 2, founders)
        for worker in founders:
            worker.hears.take_in([first.process])
        for worker in founders:
            worker.sums.push(1)
            assert worker.hears._act(Freeze(2)) == [Status(2, 1)]
        for worker in founders:
            worker.hears._act(Resume(2, 1, frozenset({first.process}), NOBODY))
        assert one.sums.wait() and other.sums.wait() and {one.sums.sum(), other.sums.sum()} == {22}
        again = Newcomer(members, 2, founders, "third")
        again.hears._act(Resume(2, 1, frozenset({first.process}), NOBODY, founders=frozenset((one.process,))))
        again.enters(one, [other], 2)
        assert make([*founders, again], 2) == {333}
