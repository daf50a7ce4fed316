"""Sums over a ring that go on when a worker is lost: what the control plane tells the rounds of a worker, and what it
sees of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from dynamix_ps.comm.plane import PeerFailure
from dynamix_ps.comm.ring.group import RingGroup
from dynamix_ps.comm.ring.rounds import RingRounds
from dynamix_ps.comm.ring.stores import StoreWatch
from dynamix_ps.membership.ring_worker import Ring
from dynamix_ps.membership.sums import SumProgress

_LOOK_S = 0.1  # a worker that ends sees so often whether the others need it
_BROKEN_S = 2.0  # so long has a ring failed when the coordinator is asked for another: by then losses are confirmed
_DEPART_S = 10.0  # so long does a worker that ends wait for the others to complete its last round


class ElasticRing:
    """A `WorkerPlane`. The training thread pushes to its rounds and waits for them, the control plane does the rest.

    Args:
        rank: of this worker.
        group: the ring of the workers that the job begins with; None: this worker is a joiner.
        address: where the members of a generation can meet, if this worker has the lowest rank of them.

    Attributes:
        rounds: of this worker.
    """

    def __init__(self, rank: int, group: RingGroup | None, address: str) -> None:
        self.address, self.rounds = address, RingRounds(rank, group)
        self._changed, self._worker = self.rounds.changed, self.rounds.worker
        self._told: Ring | None = None  # the newest one that was told to be broken
        self._watch = StoreWatch()

    # The control plane.

    def meet(self, addresses: Mapping[int, str], leaving: Collection[int] = ()) -> None:
        """Workers that are behind complete a round in a ring of all members; a ring of those that stay follows."""
        with self._changed:
            self._worker.meet(addresses, leaving)

    def freeze(self) -> SumProgress:
        """Let no round complete from now on, until `resume`."""
        with self._changed:
            return self._worker.freeze()

    def status(self) -> SumProgress:
        """How far the sums are."""
        with self._changed:
            return self._worker.status()

    def resume(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> None:
        """Returns at once. Raises ValueError as `RingWorker.resume` does."""
        with self._changed:
            self.rounds.follow(self._worker.resume(generation, round_number, contributions, lost_servers))

    def expect(self, contributions: int) -> None:
        """Returns at once. The next round begins when all are there."""
        with self._changed:
            self.rounds.follow(self._worker.expect(contributions))

    def enter(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> int:
        """Returns the next round, at once: only who has completed a round has sums that others may lack."""
        with self._changed:
            first, effects = self._worker.enter(generation, round_number, contributions, lost_servers)
            self.rounds.follow(effects)
            return first

    def depart(self, over: Callable[[], bool]) -> bool:
        """The last round of this worker is complete: wait until it is complete on all others of the ring, or `over`.

        Returns whether all have. Waits a few seconds at most, also while changes are in progress.
        """
        deadline_s = time.monotonic() + _DEPART_S
        with self._changed:
            self._worker.depart()
        while not over() and time.monotonic() < deadline_s:
            with self._changed:
                if (ring := self._worker.released) is None:
                    self._changed.wait(_LOOK_S)
                    continue
                group = self.rounds.groups[ring]
            group.finish()
            found = group.is_finished(_LOOK_S)
            with self._changed:
                if found or (found is None and ring == self._worker.ring):
                    self._worker.finished(ring)
                if self._worker.departed:
                    return True
        return False

    def close(self) -> None:
        """Close the ring: the process ends, and its last round is complete."""
        self.freeze()
        self.rounds.close()

    # There are no servers.

    def unanswered(self) -> frozenset[int]:
        """None."""
        return frozenset()

    def use_servers_without(self, lost_servers: Collection[int]) -> None:
        """Does nothing."""

    def answers(self, server: int, limit_s: float) -> bool:
        """False."""
        return False

    def silent_servers(self, quiet_s: float) -> frozenset[int]:
        """None."""
        return frozenset()

    # What is seen of the others.

    def next_loss(self, timeout_s: float) -> PeerFailure | None:
        """A worker whose process is gone, which breaks the ring, or a ring that is broken without one.

        None: there is none within `timeout_s`.
        """
        worker = self._worker
        with self._changed:
            if not self._changed.wait_for(lambda: worker.is_broken, timeout_s):
                return None
            others = worker.others()
        rank = self._watch.gone(others)
        with self._changed:
            if rank is not None and worker.others().get(rank) == others[rank]:  # else another one is there by now
                return PeerFailure("worker", rank)
            self._changed.wait_for(lambda: not worker.is_broken, timeout_s)
            ring = worker.making or worker.ring
            if not worker.is_broken or ring in (None, self._told) or time.monotonic() - self.rounds.moved_s < _BROKEN_S:
                return None
            self._told = ring
            return PeerFailure("ring", ring.generation)

    def silent(self, quiet_s: float) -> frozenset[int]:
        """Members that this worker waits for and whose process has not answered for `quiet_s`.

        The store of a process answers, even while the script is busy.
        """
        with self._changed:
            quiet_for_s = time.monotonic() - self.rounds.moved_s if self._worker.waits else 0.0
            others = self._worker.others()
        return frozenset() if quiet_for_s < quiet_s / 2 else self._watch.silent(others, quiet_s / 2)
