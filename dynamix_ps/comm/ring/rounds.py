"""The rounds of a worker over a ring: what `RingWorker` decides is done, and it is told what comes of that."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from dynamix_ps.comm.ring.group import Given, Over, RingGroup, is_complete, meet
from dynamix_ps.comm.ring.stores import CONNECT_S
from dynamix_ps.comm.ring.sums import RingSums
from dynamix_ps.membership.ring_worker import Effect, Meet, Ring, RingWorker, SpreadKept, StartSum

logger = logging.getLogger("dynamix")
_SLICE_S = 0.1  # so often a wait for a ring sees that it was given up: only its neighbours see a lost worker
_MAKING_S = 8 * CONNECT_S  # after which no worker makes a ring that was given up


class RingRounds:
    """Each ring is made in a thread of its own.

    Args:
        rank: of this worker.
        group: the ring of the workers that the job begins with; None: this worker is a joiner.

    Attributes:
        changed: to be held for all below, and told of every event.
        worker: decides.
        groups: the rings that there are, and some that were given up.
        moved_s: when something came of others, or went to them.
    """

    def __init__(self, rank: int, group: RingGroup | None) -> None:
        first = Ring(0, 0, tuple((other, "") for other in range(group.size))) if group else None
        self.changed = threading.Condition()
        self.worker = RingWorker(rank, first)
        self.groups: dict[Ring, RingGroup] = {first: group} if first and group else {}
        self.moved_s = time.monotonic()
        self._sums = RingSums()
        self._makers: list[threading.Thread] = []

    # The training thread.

    def push_pull(self, name: str, buffer: Any, begin: int) -> int:
        """As in Comm."""
        with self.changed:
            self._sums.push(name, buffer, begin)
            handle, effects = self.worker.push()
            self.follow(effects)
            return handle

    def wait(self, handle: int, timeout_s: float) -> bool:
        """Whether the round of this push is complete. The first wait that returns true completes the whole round."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self.changed:
                worker, left_s = self.worker, deadline_s - time.monotonic()
                if worker.is_complete(handle):
                    return True
                if (ring := worker.ring) is None or worker.is_held:
                    if left_s <= 0 or not self.changed.wait(left_s):
                        return False
                    continue
                if (part := worker.next_part()) is None:
                    self._complete()
                    return True
                work = self._sums.work(part)
            if not self._await(ring, part, work, min(left_s, _SLICE_S)) and time.monotonic() >= deadline_s:
                return False

    def _complete(self) -> None:
        self.worker.complete()
        self._sums.hand_out()
        now, groups = self.worker.ring, self.groups.items()
        self.groups = {ring: group for ring, group in groups if ring == now or not group.is_idle}

    def _await(self, ring: Ring, part: int, work: Any, timeout_s: float) -> bool:
        """Whether the sum has ended within this time, one way or the other."""
        try:
            if not is_complete(work, timeout_s):
                return False
            event = partial(self.worker.summed, ring, part)
        except RuntimeError:
            event = partial(self.worker.failed, ring)
        with self.changed:
            event()
            self.follow([])
        return True

    # Rings.

    def follow(self, effects: Iterable[Effect]) -> None:
        """Do what follows from an event."""
        self.moved_s = time.monotonic()
        self.changed.notify_all()
        for effect in effects:
            match effect:
                case StartSum(ring, part):
                    self._sums.start(part, self.groups[ring])
                case Meet(ring, before):
                    self._start(ring, partial(self._make, ring, self.groups[before] if before else None))
                case SpreadKept(ring):
                    group = self.groups[ring]
                    sums = self._sums.to_spread(effect.sender == group.index, effect.receives)
                    self._start(ring, partial(self._spread, effect, group, sums))

    def _start(self, ring: Ring, work: Callable[[Over], None]) -> None:
        """Do a part of the making of a ring in a thread of its own."""

        def run() -> None:
            try:
                work(lambda: self.worker.making != ring)
            except Given:
                pass
            except (OSError, RuntimeError) as error:
                said = str(error).strip().splitlines()[-1:]
                logger.warning("generation %d has no ring: %s", ring.generation, "".join(said))
                with self.changed:
                    self.worker.failed(ring)
                    self.follow([])

        maker = threading.Thread(target=run, name="dynamix-ring", daemon=True)
        self._makers = [*(one for one in self._makers if one.is_alive()), maker]
        maker.start()

    def _make(self, ring: Ring, before: RingGroup | None, over: Over) -> None:
        if before is not None:
            before.finish()
        name = f"generation {ring.generation}, round {ring.first_round}"
        group = meet(name, self.worker.rank, dict(ring.members), over)
        with self.changed:
            self.groups[ring] = group
        rounds = group.gather(self.worker.round, over)
        with self.changed:
            self.follow(self.worker.met(ring, rounds))

    def _spread(self, effect: SpreadKept, group: RingGroup, sums: Mapping[str, Any], over: Over) -> None:
        group.spread(list(sums.values()), effect.sender, over)
        with self.changed:
            if effect.receives and not over():
                self._sums.receive(sums)
            self.follow(self.worker.spread(effect.ring))

    def close(self) -> None:
        """Close all rings: the process ends. No round completes any more."""
        for maker in self._makers:
            maker.join(_MAKING_S)  # that it does not meet the end of the interpreter
        for group in self.groups.values():
            group.abandon()
