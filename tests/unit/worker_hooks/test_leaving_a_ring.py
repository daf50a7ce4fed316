"""Workers leave a ring while others are lost: each with its real sums and its real part in changes of membership."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from dynamix_ps.config.schema import Timeouts
from dynamix_ps.membership.messages import Freeze, Leave, Process, Resume, Status
from dynamix_ps.rpc.access import ArbitratorAccess
from tests.rings import PATIENCE_S, Member, job
from worker_hooks.membership.member import WorkerMember

pytestmark = pytest.mark.timeout(90)


class Told:
    """In the place of the stream to the coordinator, and of the thread that looks for losses."""

    def __init__(self) -> None:
        self.last: Any = None
        self.kept: list[Any] = []

    def close(self, last: Any) -> None:
        self.last = last

    def keep_telling(self, message: Any) -> None:
        self.kept.append(message)

    def join(self, timeout_s: float) -> None:
        """There is no thread."""


class Worker:
    """A member of a ring, and what it hears of changes."""

    def __init__(self, member: Member, workers: int) -> None:
        self.rank, self.sums, self.told = member.rank, member, Told()
        self.process = Process("worker", member.rank, "first", member.ring.address)
        access = ArbitratorAccess("127.0.0.1:1", "r", "t", Timeouts())
        self.replaced: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.hears = WorkerMember(access, self.process, member.ring, workers, replaced=self.replaced.put)
        self.hears._member = self.hears._watch = self.told  # type: ignore[assignment]

    def ends(self) -> threading.Thread:
        ending = threading.Thread(target=self.hears.close)
        ending.start()
        return ending


def founded(members: list[Member]) -> list[Worker]:
    workers = [Worker(member, len(members)) for member in members]
    founders = frozenset(worker.process for worker in workers)
    for worker in workers:
        worker.hears._act(Resume(1, 0, frozenset(), frozenset(), founders=founders))
    return workers


def lose(lost: list[Worker], left: list[Worker], rounds: list[int], generation: int = 2) -> None:
    """All that are `left` have named these rounds, and hear what is decided."""
    for worker, number in zip(left, rounds, strict=True):
        assert worker.hears._act(Freeze(generation)) == [Status(generation, number)]
    gone = frozenset(worker.process for worker in lost)
    for worker in left:
        worker.hears._act(Resume(generation, max(rounds), gone, frozenset()))


@pytest.mark.parametrize("knows", ["before the loss", "while the ring is made", "after"])
def test_one_is_lost_in_the_last_round_of_another_which_lacks_its_sum(knows: str) -> None:
    """Only one of those that stay has completed the round, and knows that one leaves with it."""
    with job(4) as members:
        ahead, leaver, lost, behind = founded(members)
        for member in members:
            member.push(0)
        assert ahead.sums.wait()
        if knows == "before the loss":
            ahead.hears.others_left([leaver.rank])
            ahead.sums.push(1)
        lose([lost], [ahead, leaver, behind], [1, 0, 0])
        if knows == "after":
            assert leaver.sums.wait()
        if knows != "before the loss":
            ahead.hears.others_left([leaver.rank])
            ahead.sums.push(1)
        assert leaver.sums.wait() and behind.sums.wait()
        assert leaver.sums.sum() == behind.sums.sum() == 1111
        leaver.hears.others_left([leaver.rank])
        ending = leaver.ends()
        behind.hears.others_left([leaver.rank])
        behind.sums.push(1)
        assert ahead.sums.wait() and behind.sums.wait()
        assert ahead.sums.sum() == behind.sums.sum() == 2002
        ending.join(PATIENCE_S)
        assert leaver.told.last == Leave()


def test_one_that_leaves_and_is_rounds_behind_at_a_loss_ends_and_the_others_go_on() -> None:
    """They need nothing of it, and what the lowest of them keeps is not the sum that it lacks."""
    with job(4) as members:
        one, leaver, lost, other = founded(members)
        for member in members:
            member.push(0)
        for turn in (1, 2):
            for worker in (one, lost, other):
                assert worker.sums.wait()
                worker.hears.others_left([leaver.rank] if turn == 1 else [])
                worker.sums.push(turn)
        lose([lost], [one, leaver, other], [2, 0, 2])
        assert "before it had sum 0, with which it leaves; the others are at sum 2" in leaver.replaced.get(timeout=0)
        lose([lost, leaver], [one, other], [2, 2], generation=3)
        assert one.sums.wait() and other.sums.wait()
        assert one.sums.sum() == other.sums.sum() == 3003
