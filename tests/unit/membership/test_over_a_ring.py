"""Workers enter and leave a ring while others are lost: each with its real sums, and what it decides."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

import pytest

from dynamix_ps.membership.effects import GoAway, Tell
from dynamix_ps.membership.messages import Freeze, Leave, Process, Resume, Status
from dynamix_ps.membership.worker import Worker
from tests.rings import PATIENCE_S, Member, come, job

pytestmark = pytest.mark.timeout(90)


class RingWorker:
    """A member of a ring, and what it decides."""

    def __init__(self, sums: Member, founders: int, late: bool = False) -> None:
        self.rank, self.sums, self.replaced = sums.rank, sums, ""
        self.process = Process("worker", sums.rank, "second" if late else "first", sums.ring.address)
        self.core = Worker(self.process, sums.ring, founders, late)

    def hear(self, resume: Resume) -> None:
        for effect in self.core.on_message(resume, 0.0):
            assert isinstance(effect, GoAway)
            self.replaced = effect.reason

    def ends(self) -> threading.Thread:
        """It leaves when the others have its last round."""

        def end() -> None:
            self.core.depart()
            self.departed = self.sums.ring.depart(lambda: self.core.need_not_stay)

        ending = threading.Thread(target=end)
        ending.start()
        return ending


def founded(members: list[Member]) -> list[RingWorker]:
    workers = [RingWorker(member, len(members)) for member in members]
    for worker in workers:
        worker.hear(founding(workers))
    return workers


def founding(workers: Collection[RingWorker]) -> Resume:
    return Resume(1, 0, frozenset(), founders=frozenset(worker.process for worker in workers))


def enter(members: list[Member], rank: int, giver: RingWorker, others: Sequence[RingWorker], number: int) -> RingWorker:
    """The giver has taken it in and given it the state before this round; these others have taken it in, too."""
    newcomer = newcome(members, rank)
    (ready,) = newcomer.core.begin(giver.core.take_in([newcomer.process]), number)
    assert isinstance(ready, Tell)
    for other in others:
        other.core.take_in([newcomer.process])
    return newcomer


def newcome(members: list[Member], rank: int) -> RingWorker:
    newcomer = RingWorker(come(members, rank), len(members) - 1, late=True)
    newcomer.hear(founding(()))
    return newcomer


def lose(lost: Collection[RingWorker], named: dict[RingWorker, int | None], generation: int = 2) -> None:
    """These have named a round, or none, and hear what is decided."""
    for one, number in named.items():
        assert one.core.on_message(Freeze(generation), 0.0) == [Tell(Status(generation, number))]
    first = max(number for number in named.values() if number is not None)
    gone = frozenset(one.process for one in lost)
    without_state = frozenset(one.process for one, number in named.items() if number is None)
    for one in named:
        one.hear(Resume(generation, first, gone, without_state))


def make(workers: Collection[RingWorker], turn: int) -> int:
    """All make a round, which is to be the same on all."""
    for worker in workers:
        worker.sums.push(turn)
    return made(workers)


def made(workers: Collection[RingWorker]) -> int:
    assert all(worker.sums.wait() for worker in workers)
    (found,) = {worker.sums.sum() for worker in workers}
    return found


def test_who_enters_is_a_member_like_others() -> None:
    with job() as members:
        one, other, lost = founders = founded(members)
        assert make(founders, 0) == 111
        newcomer = enter(members, 3, one, [other, lost], 1)
        assert make([*founders, newcomer], 1) == 2222
        for worker in (one, other, newcomer):
            worker.sums.push(2)
        lose([lost], {one: 2, other: 2, newcomer: 2})
        assert made((one, other, newcomer)) == 3033 and not newcomer.replaced


def test_a_newcomer_has_the_place_of_one_that_has_left() -> None:
    with job() as members:
        one, other, leaver = founders = founded(members)
        assert make(founders, 0) == 111
        for worker in (one, other):
            worker.core.others_left([leaver.rank])
        assert make([one, other], 1) == 22
        assert make([one, other, enter(members, leaver.rank, one, [other], 2)], 2) == 333


def test_the_giver_is_lost_and_it_alone_had_the_round_before() -> None:
    """The newcomer has the state after that round, and the others make the round anew without the giver."""
    with job() as members:
        giver, one, other = founders = founded(members)
        for worker in founders:
            worker.sums.push(0)
        assert giver.sums.wait()
        newcomer = enter(members, 3, giver, [], 1)
        newcomer.sums.push(1)
        lose([giver], {one: 0, other: 0, newcomer: None})
        assert "must be started again" in newcomer.replaced
        assert made((one, other)) == 110
        for worker in (one, other):
            worker.hear(Resume(3, 1, frozenset({giver.process})))  # which knows of no newcomer
            planned = worker.core.take_in([newcomer.process])  # as was voted
            assert sorted(planned.workers) == [one.process, other.process]
        assert make([one, other], 1) == 220


@pytest.mark.parametrize("taken_in", [False, True], ids=["voted in", "taken in"])
def test_another_is_lost_before_a_newcomer_has_the_state(taken_in: bool) -> None:
    with job() as members:
        one, other, lost = founders = founded(members)
        assert make(founders, 0) == 111
        newcomer = newcome(members, 3)
        for worker in (one, other) if taken_in else ():
            worker.core.take_in([newcomer.process])
        for worker in (one, other):
            worker.sums.push(1)
        lose([lost], {one: 1, other: 1, newcomer: None})
        assert "must be started again" in newcomer.replaced
        assert made((one, other)) == 22
        assert make([one, other], 2) == 33


def test_another_is_lost_before_a_newcomer_has_completed_a_round_that_others_have() -> None:
    """Its part counts in this round, and it is in none after it."""
    with job() as members:
        ahead, behind, lost = founders = founded(members)
        assert make(founders, 0) == 111
        newcomer = enter(members, 3, ahead, [behind, lost], 1)
        for worker in (*founders, newcomer):
            worker.sums.push(1)
        assert made([ahead]) == 2222
        ahead.sums.clear()
        ahead.sums.push(2)
        lose([lost], {ahead: 2, behind: 1, newcomer: None})
        assert "must be started again" in newcomer.replaced
        assert made([behind]) == 2222
        behind.sums.push(2)
        assert made((ahead, behind)) == 33


@pytest.mark.parametrize("knows", ["before the loss", "while the ring is made", "after"])
def test_one_is_lost_in_the_last_round_of_another_which_lacks_its_sum(knows: str) -> None:
    """Only one of those that stay has completed the round, and knows that one leaves with it."""
    with job(4) as members:
        ahead, leaver, lost, behind = founded(members)
        for member in members:
            member.push(0)
        assert ahead.sums.wait()
        if knows == "before the loss":
            ahead.core.others_left([leaver.rank])
            ahead.sums.push(1)
        lose([lost], {ahead: 1, leaver: 0, behind: 0})
        if knows == "after":
            assert leaver.sums.wait()
        if knows != "before the loss":
            ahead.core.others_left([leaver.rank])
            ahead.sums.push(1)
        assert made((leaver, behind)) == 1111
        leaver.core.others_left([leaver.rank])
        ending = leaver.ends()
        behind.core.others_left([leaver.rank])
        behind.sums.push(1)
        assert made((ahead, behind)) == 2002
        ending.join(PATIENCE_S)
        assert leaver.core.last_word(leaver.departed) == Leave()


def test_one_that_leaves_and_is_rounds_behind_at_a_loss_ends_and_the_others_go_on() -> None:
    """They need nothing of it, and what the lowest of them keeps is not the sum that it lacks."""
    with job(4) as members:
        one, leaver, lost, other = founded(members)
        for member in members:
            member.push(0)
        for turn in (1, 2):
            for worker in (one, lost, other):
                assert worker.sums.wait()
                worker.core.others_left([leaver.rank] if turn == 1 else [])
                worker.sums.push(turn)
        lose([lost], {one: 2, leaver: 0, other: 2})
        assert "before it had sum 0, with which it leaves; the others are at sum 2" in leaver.replaced
        lose([lost, leaver], {one: 2, other: 2}, generation=3)
        assert made((one, other)) == 3003
