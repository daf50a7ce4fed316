"""Sums over a ring that go on when a worker is lost: does what `RingWorker` says, and tells it what comes of it.

`RingWorker` (dynamix_ps/membership/ring_worker.py) decides what happens in a change, and who is in which ring.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from dynamix_ps.comm.plane import PeerFailure
from dynamix_ps.comm.ring.group import Given, Over, RingGroup, is_complete, meet
from dynamix_ps.comm.ring.stores import CONNECT_S, StoreWatch
from dynamix_ps.comm.ring.sums import RingSums
from dynamix_ps.membership.ring_worker import Effect, Meet, Ring, RingWorker, SpreadKept, StartSum
from dynamix_ps.membership.sums import SumProgress

logger = logging.getLogger("dynamix")
_SLICE_S = 0.1  # so often a wait for a ring sees that it was given up: only its neighbours see a lost worker
_LOOK_S = 0.1  # a worker that ends sees so often whether the others need it
_BROKEN_S = 2.0  # so long has a ring failed when the coordinator is asked for another: by then losses are confirmed
_DEPART_S = 10.0  # so long does a worker that ends wait for the others to complete its last round
_MAKING_S = 8 * CONNECT_S  # after which no worker makes a ring that was given up


class ElasticRing:
    """A `WorkerPlane`. The training thread pushes and waits, the control plane does the rest.

    Each ring is made in a thread of its own.

    Args:
        rank: of this worker.
        group: the ring of the workers that the job begins with; None: this worker is a joiner.
        address: where the members of a generation can meet, if this worker has the lowest rank of them.
    """

    def __init__(self, rank: int, group: RingGroup | None, address: str) -> None:
        first = Ring(0, 0, tuple((other, "") for other in range(group.size))) if group else None
        self.address = address
        self._changed = threading.Condition()  # of all below
        self._worker = RingWorker(rank, first)
        self._sums = RingSums()
        self._groups: dict[Ring, RingGroup] = {first: group} if first and group else {}  # also some given up
        self._makers: list[threading.Thread] = []
        self._moved_s = time.monotonic()  # when something came of others, or went to them
        self._told: Ring | None = None  # the newest one that was told to be broken
        self._watch = StoreWatch()

    # The training thread.

    def push_pull(self, name: str, buffer: Any, begin: int) -> int:
        """As in Comm."""
        with self._changed:
            self._sums.push(name, buffer, begin)
            handle, effects = self._worker.push()
            self._follow(effects)
            return handle

    def wait(self, handle: int, timeout_s: float) -> bool:
        """Whether the round of this push is complete. The first wait that returns true completes the whole round."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._changed:
                worker, left_s = self._worker, deadline_s - time.monotonic()
                if worker.is_complete(handle):
                    return True
                if (ring := worker.ring) is None or worker.is_held:
                    if left_s <= 0 or not self._changed.wait(left_s):
                        return False
                    continue
                if (part := worker.next_part()) is None:
                    self._complete()
                    return True
                work = self._sums.work(part)
            if not self._await(ring, part, work, min(left_s, _SLICE_S)) and time.monotonic() >= deadline_s:
                return False

    def _complete(self) -> None:
        self._worker.complete()
        self._sums.hand_out()
        now, groups = self._worker.ring, self._groups.items()
        self._groups = {ring: group for ring, group in groups if ring == now or not group.is_idle}

    def _await(self, ring: Ring, part: int, work: Any, timeout_s: float) -> bool:
        """Whether the sum has ended within this time, one way or the other."""
        try:
            if not is_complete(work, timeout_s):
                return False
            event = partial(self._worker.summed, ring, part)
        except RuntimeError:
            event = partial(self._worker.failed, ring)
        with self._changed:
            event()
            self._follow([])
        return True

    # Rings.

    def _follow(self, effects: Iterable[Effect]) -> None:
        """Do what follows from an event."""
        self._moved_s = time.monotonic()
        self._changed.notify_all()
        for effect in effects:
            match effect:
                case StartSum(ring, part):
                    self._sums.start(part, self._groups[ring])
                case Meet(ring, before):
                    self._start(ring, partial(self._make, ring, self._groups[before] if before else None))
                case SpreadKept(ring):
                    group = self._groups[ring]
                    sums = self._sums.to_spread(effect.sender == group.index, effect.receives)
                    self._start(ring, partial(self._spread, effect, group, sums))

    def _start(self, ring: Ring, work: Callable[[Over], None]) -> None:
        """Do a part of the making of a ring in a thread of its own."""

        def run() -> None:
            try:
                work(lambda: self._worker.making != ring)
            except Given:
                pass
            except (OSError, RuntimeError) as error:
                said = str(error).strip().splitlines()[-1:]
                logger.warning("generation %d has no ring: %s", ring.generation, "".join(said))
                with self._changed:
                    self._worker.failed(ring)
                    self._follow([])

        maker = threading.Thread(target=run, name="dynamix-ring", daemon=True)
        self._makers = [*(one for one in self._makers if one.is_alive()), maker]
        maker.start()

    def _make(self, ring: Ring, before: RingGroup | None, over: Over) -> None:
        if before is not None:
            before.finish()
        name = f"generation {ring.generation}, round {ring.first_round}"
        group = meet(name, self._worker.rank, dict(ring.members), over)
        with self._changed:
            self._groups[ring] = group
        rounds = group.gather(self._worker.round, over)
        with self._changed:
            self._follow(self._worker.met(ring, rounds))

    def _spread(self, effect: SpreadKept, group: RingGroup, sums: Mapping[str, Any], over: Over) -> None:
        group.spread(list(sums.values()), effect.sender, over)
        with self._changed:
            if effect.receives and not over():
                self._sums.receive(sums)
            self._follow(self._worker.spread(effect.ring))

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
            self._follow(self._worker.resume(generation, round_number, contributions, lost_servers))

    def expect(self, contributions: int) -> None:
        """Returns at once. The next round begins when all are there."""
        with self._changed:
            self._follow(self._worker.expect(contributions))

    def enter(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> int:
        """Returns the next round, at once: only who has completed a round has sums that others may lack."""
        with self._changed:
            first, effects = self._worker.enter(generation, round_number, contributions, lost_servers)
            self._follow(effects)
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
                group = self._groups[ring]
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
        for maker in self._makers:
            maker.join(_MAKING_S)  # that it does not meet the end of the interpreter
        for group in self._groups.values():
            group.abandon()

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
            if not worker.is_broken or ring in (None, self._told) or time.monotonic() - self._moved_s < _BROKEN_S:
                return None
            self._told = ring
            return PeerFailure("ring", ring.generation)

    def silent(self, quiet_s: float) -> frozenset[int]:
        """Members that this worker waits for and whose process has not answered for `quiet_s`.

        The store of a process answers, even while the script is busy.
        """
        with self._changed:
            quiet_for_s = time.monotonic() - self._moved_s if self._worker.waits else 0.0
            others = self._worker.others()
        return frozenset() if quiet_for_s < quiet_s / 2 else self._watch.silent(others, quiet_s / 2)
