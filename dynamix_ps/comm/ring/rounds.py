"""A worker's rounds over a ring, which can be given up at any time, beside the thread that trains."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

from dynamix_ps.comm.ring.group import RingGroup
from dynamix_ps.comm.ring.sums import RingSums, RoundBuffer
from dynamix_ps.membership.ring_worker import RingProgress

_SLICE_S = 0.1  # so often a wait for a ring sees that it was given up: only its neighbours see a lost worker


class RingRounds:
    """The training thread pushes and waits. The thread that makes the next ring sets `_group` and starts its sums.

    Args:
        group: the ring of the workers that the job begins with; None: this worker is a joiner.
    """

    def __init__(self, group: RingGroup | None) -> None:
        self._changed = threading.Condition()  # of all below
        self._sums = RingSums()
        self._group = group  # None: no round completes
        self._given_up: list[RingGroup] = []
        self._is_broken = False
        self._moved_s = time.monotonic()  # when something came of others, or went to them

    def push_pull(self, name: str, buffer: Any, begin: int) -> int:
        """As in Comm."""
        with self._changed:
            self._moved_s = time.monotonic()
            return self._sums.push(name, buffer, begin, self._group)

    def wait(self, handle: int, timeout_s: float) -> bool:
        """Whether the round of this push is complete. The first wait that returns true completes the whole round."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._changed:
                if self._sums.is_complete(handle):
                    return True
                left_s = deadline_s - time.monotonic()
                if (group := self._group) is None or self._is_broken:
                    if left_s <= 0 or not self._changed.wait(left_s):
                        return False
                    continue
                if (part := self._sums.next_part()) is None:
                    self._sums.complete()
                    self._given_up = [one for one in self._given_up if not one.is_idle]
                    return True
                work = part.work
            self._await(group, part, work, min(left_s, _SLICE_S))
            if not part.is_summed and time.monotonic() >= deadline_s:
                return False

    def _await(self, group: RingGroup, part: RoundBuffer, work: Any, timeout_s: float) -> None:
        try:
            work.wait(timedelta(seconds=max(timeout_s, 1e-3)))  # 0 means no limit
        except RuntimeError:
            if not work.is_completed():
                return
        with self._changed:
            if group is self._group:
                self._moved_s = time.monotonic()
                part.is_summed = work.is_success()
                self._is_broken |= not part.is_summed
                self._changed.notify_all()

    def freeze(self) -> RingProgress:
        """Let no round complete from now on, until `resume`."""
        with self._changed:
            self._give_up()
            return RingProgress(self._sums.round)

    def status(self) -> RingProgress:
        """How far the sums are."""
        with self._changed:
            return RingProgress(self._sums.round)

    def _give_up(self) -> None:
        """Give up the ring, and the sums that have begun in it."""
        if self._group is not None:
            self._given_up.append(self._group)
        self._group = None
        self._is_broken = False
        self._sums.give_up()
        self._changed.notify_all()
