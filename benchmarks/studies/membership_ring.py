"""A worker of a ring, for the model of membership: no servers, and each keeps the sums of its last completed round.

A ring completes a key on a worker when the parts of all have come there, on some workers earlier than on others. This
is what counts here; on which way they come does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynamix_ps.membership.data_messages import Part, Push
from dynamix_ps.membership.messages import Leave, Process, Processes, Resume
from dynamix_ps.membership.schedule import Schedule
from dynamix_ps.membership.worker import Worker
from dynamix_ps.membership.worker_rounds import Outgoing

Sums = Mapping[int, Mapping[Process, Part] | None]  # by key


@dataclass(frozen=True, slots=True)
class Kept:
    """The donor to all others in the ring of a generation: the sums of the round before the one that is made anew."""

    generation: int
    round: int
    sums: Sums


class RingWorker(Worker):
    """Makes sums together with the other workers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `Worker`."""
        super().__init__(*args, **kwargs)
        self._parts: dict[tuple[int, int, int], dict[Process, Part]] = {}  # by generation, round and key
        self._last_sums: Sums = {}
        self._given: Kept | None = None
        self._left: set[Process] = set()

    def waiting(self) -> Processes:
        keys = range(self.current.pushed)
        return frozenset(other for key in keys for other in self._expected() - self._of(key).keys()) - {self.process}

    def push(self) -> Outgoing:
        return self._to_all(super().push())

    def on_closed(self, server: Process) -> Outgoing:
        return [] if server in self._left else super().on_closed(server)

    def _follow(self, sender: Process, message: Any) -> Outgoing:
        match message:
            case Push(generation, number, key, _, part):
                self._parts.setdefault((generation, number, key), {})[sender] = part
                return self._go_on()
            case Kept():
                self._given = message
                return self._go_on()
            case Leave():
                self._left.add(sender)
                return []
        return super()._follow(sender, message)

    def _of(self, key: int) -> dict[Process, Part]:
        """What has come of a key of the present round, in the present ring."""
        return self._parts.get((self.current.generation, self.round, key), {})

    def _go_on(self) -> Outgoing:
        if self.schedule is None or self._held():
            return []
        if self.current.generation < self.generation:
            self.current.anew(self.generation, self.current.places)  # it is behind: the old ring is given up
        for key in range(self.current.pushed):
            if self._of(key).keys() == self._expected():
                self.current.answers[key] = dict(self._of(key))
        given = self._given
        if given and (given.generation, given.round) == (self.generation, self.round):
            self.current.answers = dict(given.sums)
        return super()._go_on()

    def _enter(self, number: int, schedule: Schedule) -> Outgoing:
        self._last_sums = dict(self.current.answers)
        return super()._enter(number, schedule)

    def _make_anew(self, schedule: Schedule, resume: Resume) -> Outgoing:
        again = self._to_all(super()._make_anew(schedule, resume))
        kept = Kept(self.generation, resume.first_round - 1, self._last_sums)
        others = sorted(self._expected() - {self.process}) if resume.donor == self.process else ()
        return [*((other, kept) for other in others), *again]  # type: ignore[list-item]  # of the ring alone

    def _leave(self) -> Outgoing:
        return [*super()._leave(), *((other, Leave()) for other in sorted(self._expected() - {self.process}))]

    def _places(self, number: int, schedule: Schedule) -> Mapping[int, Process]:
        return self._place(frozenset({self.process}))

    def _to_all(self, messages: Outgoing) -> Outgoing:
        """Each push goes to all that are in the ring."""
        receivers = sorted(self._expected())
        return [
            (other, message)
            for receiver, message in messages
            for other in (receivers if isinstance(message, Push) else [receiver])
        ]


class RingWithoutFreeze(RingWorker):
    """Completes a round after it has named it as incomplete."""

    def _held(self) -> bool:
        return False


class RingWithoutGenerations(RingWorker):
    """Takes parts of any ring."""

    def _of(self, key: int) -> dict[Process, Part]:
        found: dict[Process, Part] = {}
        for (_, number, other), parts in self._parts.items():
            if (number, other) == (self.round, key):
                found |= parts
        return found


class RingWithoutKeptSums(RingWorker):
    """Waits for a sum of which nobody has kept a copy."""

    def _enter(self, number: int, schedule: Schedule) -> Outgoing:
        messages = super()._enter(number, schedule)
        self._last_sums = {}
        return messages
