"""The rules of a ring, each switched off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynamix_ps.membership.data_messages import Part
from dynamix_ps.membership.messages import Freeze, Process, Processes, Resume
from dynamix_ps.membership.schedule import Schedule
from dynamix_ps.membership.worker import Worker
from dynamix_ps.membership.worker_rounds import Outgoing, WorkerRounds
from tests.models.membership.ring import RingWorker
from tests.models.membership.ring_messages import Ring


class WithoutFreeze(RingWorker):
    """Completes a round after it has named it as incomplete."""

    def _held(self) -> bool:
        return False

    def _freeze(self, generation: int) -> Outgoing:
        return Worker._freeze(self, generation)


class WithoutGenerations(RingWorker):
    """Takes parts of any ring."""

    def _of(self, ring: Ring, key: int) -> dict[Process, Part]:
        found: dict[Process, Part] = {}
        for (_, number, other), parts in self._pieces.items():
            if (number, other) == (self.round, key):
                found |= parts
        return found


class WithoutKeptSums(RingWorker):
    """Keeps no copy of a sum."""

    def _enter(self, number: int, schedule: Schedule) -> Outgoing:
        messages = super()._enter(number, schedule)
        self._kept = {}
        return messages


class WithoutStaying(RingWorker):
    """Goes as soon as it has its last sum."""

    def _depart(self) -> Outgoing:
        return WorkerRounds._leave(self) if self.process in self._left else super()._depart()


class CountedOn(RingWorker):
    """Leaves in order though it has named the round after its last one."""

    def _give_way(self) -> Outgoing:
        return WorkerRounds._leave(self)


class WithoutLeavers(RingWorker):
    """Leaves out of the ring of a decision who has left by what it knows itself."""

    def _members(self, resume: Resume) -> Processes:
        return super()._members(resume) - self._left


class WaitsInChanges(RingWorker):
    """Waits for the others in a change, too, in which it has no part."""

    def _follow(self, sender: Process, message: Any) -> Outgoing:
        has_left = self._departs and self.process in self._left
        return [] if has_left and isinstance(message, Freeze | Resume) else super()._follow(sender, message)


class GoesWhenTold(RingWorker):
    """Takes a decision that is repeated for a change of the others, which may still need it."""

    def _passes(self, message: Any) -> bool:
        return self._departs and self.process in self._left and isinstance(message, Freeze | Resume)


class CountsAtOnce(RingWorker):
    """Names its first round, of which it has the state before, and not the sums before."""

    @property
    def to_name(self) -> int | None:
        return self.round if self.schedule else None


class WaitsForTheRefused(RingWorker):
    """Counts on newcomers that had named no round at a decision."""

    def _resume(self, resume: Resume) -> Outgoing:
        return Worker._resume(self, resume)


OFF: Mapping[str, type[RingWorker]] = {
    "freeze": WithoutFreeze,
    "generations": WithoutGenerations,
    "kept sums": WithoutKeptSums,
}
OFF_WHEN_LEAVING: Mapping[str, type[RingWorker]] = {
    "staying": WithoutStaying,
    "giving way": CountedOn,
    "leavers in the next ring": WithoutLeavers,
    "going in a change": WaitsInChanges,
}
OFF_WHEN_ENTERING: Mapping[str, type[RingWorker]] = {
    "a round before it counts": CountsAtOnce,
    "refusal": WaitsForTheRefused,
}
