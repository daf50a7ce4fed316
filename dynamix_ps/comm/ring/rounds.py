"""The rounds of a worker over gloo: does what `RingWorker` (dynamix_ps/membership) says, and tells it what comes of it.

The training thread pushes and waits. Each ring is made in a thread of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from dynamix_ps.comm.ring.group import Given, Over, RingGroup, meet
from dynamix_ps.comm.ring.sums import RingSums
from dynamix_ps.membership.ring_worker import (
    Effect,
    GiveUp,
    HandOut,
    Meet,
    Release,
    Ring,
    RingWorker,
    SpreadKept,
    StartSum,
)

logger = logging.getLogger("dynamix")
_SLICE_S = 0.1  # so often a wait for a ring sees that it was given up: only its neighbours see a lost worker


class RingRounds:
    """The base of the ring's control plane.

    Args:
        rank: of this worker.
        group: the ring of the workers that the job begins with; None: this worker is a joiner.
    """

    def __init__(self, rank: int, group: RingGroup | None) -> None:
        first = Ring(0, 0, tuple((other, "") for other in range(group.size))) if group else None
        self._changed = threading.Condition()  # of all below
        self._worker = RingWorker(rank, first)
        self._sums = RingSums()
        self._groups: dict[Ring, RingGroup] = {first: group} if first and group else {}  # also some given up
        self._released: Ring | None = None  # whose members are to hear that this worker needs it no more
        self._makers: list[threading.Thread] = []
        self._moved_s = time.monotonic()  # when something came of others, or went to them

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
                    self._follow(worker.complete())
                    return True
                work = self._sums.work(part)
            if not self._await(ring, part, work, min(left_s, _SLICE_S)) and time.monotonic() >= deadline_s:
                return False

    def _await(self, ring: Ring, part: int, work: Any, timeout_s: float) -> bool:
        """Whether the sum has ended within this time, one way or the other."""
        try:
            work.wait(timedelta(seconds=max(timeout_s, 1e-3)))  # 0 means no limit
        except RuntimeError:
            if not work.is_completed():
                return False
        with self._changed:
            self._moved_s = time.monotonic()
            self._worker.summed(ring, part, work.is_success())
            if self._worker.is_broken:
                self._changed.notify_all()  # of a loss
        return True

    def _follow(self, effects: Iterable[Effect]) -> None:
        self._moved_s = time.monotonic()
        for effect in effects:
            match effect:
                case StartSum(ring, part):
                    self._sums.start(part, self._groups[ring])
                case HandOut():
                    self._sums.hand_out()
                    now, groups = self._worker.ring, self._groups.items()
                    self._groups = {ring: group for ring, group in groups if ring == now or not group.is_idle}
                case GiveUp():
                    self._sums.give_up()
                    self._changed.notify_all()
                case Meet(ring, before):
                    self._start(ring, partial(self._make, ring, self._groups[before] if before else None))
                case SpreadKept(ring):
                    group = self._groups[ring]
                    sums = self._sums.to_spread(effect.sender == group.index, effect.receives)
                    self._start(ring, partial(self._spread, effect, group, sums))
                case Release(ring):
                    self._released = ring

    def _start(self, ring: Ring, work: Callable[[Over], None]) -> None:
        """Do a part of the making of a ring in a thread of its own."""

        def run() -> None:
            try:
                work(lambda: self._worker.making != ring)
            except Given:
                pass
            except RuntimeError as error:  # one more is lost; the coordinator finds that out, and decides anew
                said = str(error).strip().splitlines()[-1:]
                logger.warning("generation %d has no ring: %s", ring.generation, "".join(said))

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
            self._changed.notify_all()

    def _spread(self, effect: SpreadKept, group: RingGroup, sums: Mapping[str, Any], over: Over) -> None:
        group.spread(list(sums.values()), effect.sender, over)
        with self._changed:
            if effect.receives and not over():
                self._sums.receive(sums)
            self._follow(self._worker.spread(effect.ring))
            self._changed.notify_all()
