"""Sums over a ring that go on when a worker is lost.

The control plane deals with rounds as over BytePS (comm/byteps/elastic.py).

In a change

    1. `freeze` gives the ring up: no result of it counts from then on, whether it completes, fails or hangs
    2. `resume` makes a new ring of the remaining workers, in a thread of its own
    3. in the new ring each worker names its round. If some are at T-1, the lowest rank at T sends them the sums of T-1,
       which it keeps
    4. all make round T of their own values, which are unchanged

So no worker takes the state of another, and no completed round is made twice. sums.py has the buffers.

When a worker leaves with a round, the others make a new ring before the next round, in a thread too. The leaving worker
stays in the old ring, and passes on the data of the others, until all say that they have completed this round. If a
decision on losses comes before the leaving worker has completed its last round, it is in the ring of this decision, for
step 3.

When a worker joins with a round, all make a new ring with it before this round, which begins when the joiner is there.
The joiner has the state of the training, but not the sums of the round before. So it takes part in a change only after
it has completed a round.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from dynamix_ps.comm.plane import PeerFailure
from dynamix_ps.comm.ring.group import MEETING_S, Given, RingGroup, meet
from dynamix_ps.comm.ring.rounds import RingRounds
from dynamix_ps.comm.ring.store_watch import StoreWatch

logger = logging.getLogger("dynamix")
_LOOK_S = 0.1  # a worker that ends sees so often whether the others need it
_DEPART_S = 10.0  # so long does a worker that ends wait for the others to complete its last round


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """The reason for a new ring, and its members."""

    generation: int
    first_round: int
    members: Mapping[int, str]
    before: RingGroup | None = None  # in which no round is made any more, in order


class ElasticRing(RingRounds):
    """The sums of this worker: the training thread pushes and waits, the control plane does the rest.

    Args:
        rank: of this worker.
        group: the ring of the workers that the job begins with; None: this worker is a joiner.
        address: where the members of a generation can meet, if this worker has the lowest rank of them.
    """

    def __init__(self, rank: int, group: RingGroup | None, address: str) -> None:
        super().__init__(group)
        self.address = address
        self._rank = rank
        self._generation = 0
        self._change: _Change | None = None  # the ring that is being made
        self._makers: list[threading.Thread] = []
        self._members: Mapping[int, str] = {}  # of the last generation: address by rank
        self._addresses: Mapping[int, str] = {}  # of the next one
        self._staying: Mapping[int, str] = {}  # those of them with whom rounds go on
        self._watch = StoreWatch()

    # Between two rounds, and at the end.

    def expect(self, contributions: int) -> None:
        """From the next round on, go on with the members of the last `meet`: workers have left or join.

        Called between two rounds. Does nothing if a decision on losses includes this change already. If another ring is
        being made, the ring of these members comes after it.
        """
        with self._changed:
            assert len(self._staying) == contributions and not self._sums.is_open, "between two rounds"
            before = self._group
            if before is not None and self._staying != self._members:
                self._give_up()
                self._begin(self._sums.round, self._staying, before)

    def depart(self, over: Callable[[], bool]) -> bool:
        """The last round of this worker is complete: wait until it is complete on all others of the ring, or `over`.

        Returns whether all have. Waits a few seconds at most, also while changes are in progress.
        """
        deadline_s = time.monotonic() + _DEPART_S
        while not over() and time.monotonic() < deadline_s:
            with self._changed:
                group = self._group
                if group is None:
                    self._changed.wait(_LOOK_S)
                    continue
            group.finish()
            if group.is_finished(_LOOK_S):
                return True
        return False

    def close(self) -> None:
        """Close the ring: the process ends, and its last round is complete."""
        with self._changed:
            self._give_up()
        for maker in self._makers:
            maker.join(2 * MEETING_S)  # that it does not meet the end of the interpreter
        for group in self._given_up:
            group.abandon()

    # The control plane.

    def meet(self, addresses: Mapping[int, str], leaving: Collection[int] = ()) -> None:
        """Workers that are behind complete a round in a ring of all members; a ring of those that stay follows."""
        with self._changed:
            self._addresses = addresses
            self._staying = {rank: address for rank, address in addresses.items() if rank not in leaving}

    def unanswered(self) -> frozenset[int]:
        """None: there are no servers."""
        return frozenset()

    def use_servers_without(self, lost_servers: Collection[int]) -> None:
        """Does nothing: there are no servers."""

    def answers(self, server: int, limit_s: float) -> bool:
        """False: there are no servers."""
        return False

    def silent_servers(self, quiet_s: float) -> frozenset[int]:
        """None: there are no servers."""
        return frozenset()

    def resume(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> None:
        """Returns at once.

        Raises ValueError if this worker is neither in this round nor one behind, or has had this generation.
        """
        with self._changed:
            assert len(self._staying) == contributions, "the coordinator has named the members"
            if generation <= self._generation or round_number - self._sums.round not in (0, 1):
                raise ValueError(
                    f"cannot resume with generation {generation} at round {round_number}: this worker is at round "
                    f"{self._sums.round}, and each generation comes once"
                )
            self._give_up()
            self._generation = generation
            self._begin(round_number, self._addresses)

    def enter(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> int:
        """Returns the next round, at once: only who has completed a round has sums that others may lack."""
        with self._changed:
            assert len(self._staying) == contributions, "the one that gives the state has named the members"
            self._generation = generation
            self._sums.enter(round_number)
            self._begin(round_number, self._staying)
        return round_number + 1

    def next_loss(self, timeout_s: float) -> PeerFailure | None:
        """A worker whose process is gone, which breaks the ring. None: there is none within `timeout_s`."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_broken, timeout_s):
                return None
            others = self._others()
        rank = self._watch.gone(others)
        with self._changed:
            if rank is not None and self._members.get(rank) == others[rank]:  # else another one is there by now
                return PeerFailure("worker", rank)
            self._changed.wait_for(lambda: not self._is_broken, timeout_s)
        return None

    def silent(self, quiet_s: float) -> frozenset[int]:
        """Members that this worker waits for and whose process has not answered for `quiet_s`.

        The store of a process answers, even while the script is busy.
        """
        with self._changed:
            waits = self._change is not None or (self._group is not None and self._sums.is_open)
            quiet_for_s = time.monotonic() - self._moved_s if waits else 0.0
            others = self._others()
        return frozenset() if quiet_for_s < quiet_s / 2 else self._watch.silent(others, quiet_s / 2)

    def _others(self) -> dict[int, str]:
        return {rank: address for rank, address in self._members.items() if rank != self._rank}

    # Rings.

    def _give_up(self) -> None:
        """Give up the ring, and also a ring that is being made."""
        self._change = None
        super()._give_up()

    def _begin(self, first_round: int, members: Mapping[int, str], before: RingGroup | None = None) -> None:
        self._members, self._moved_s = members, time.monotonic()
        self._change = _Change(self._generation, first_round, self._members, before)
        self._makers = [maker for maker in self._makers if maker.is_alive()]
        maker = threading.Thread(target=self._make, args=(self._change,), name="dynamix-ring", daemon=True)
        self._makers.append(maker)
        maker.start()

    def _make(self, change: _Change) -> None:
        def over() -> bool:
            return self._change is not change

        if change.before is not None:
            change.before.finish()
        try:
            name = f"generation {change.generation}, round {change.first_round}"
            group = meet(name, self._rank, change.members, over)
            try:
                received = self._sums.catch_up(group, change.first_round, over)
            except BaseException:
                with self._changed:
                    self._given_up.append(group)
                raise
        except Given:
            return
        except RuntimeError as error:  # one more is lost; the coordinator finds that out, and decides anew
            said = str(error).strip().splitlines()[-1:]
            logger.warning("generation %d has no ring: %s", change.generation, "".join(said))
            return
        with self._changed:
            if over():
                self._given_up.append(group)
                return
            if received is None and self._staying != change.members:
                self._given_up.append(group)
                self._begin(change.first_round, self._staying, group)
                return
            self._group, self._change, self._moved_s = group, None, time.monotonic()
            if received is None:
                self._sums.start(group)
            else:
                self._sums.receive(received)
            self._changed.notify_all()
