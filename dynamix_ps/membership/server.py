"""What a server does in changes of membership. Pure: what happens goes in, what follows from it comes out.

A server needs no word of a change: each push says how many make its sum, and the first one of a newer generation makes
void what is there of the older ones. It only says who cannot be reached.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from dynamix_ps.membership.effects import GoAway, Tell, suspicion
from dynamix_ps.membership.messages import FromCoordinator, MayPush, Process, Processes, Refused

Effects: TypeAlias = list[Tell | GoAway]


class Server:
    """Not thread safe."""

    def __init__(self) -> None:
        self._workers: Processes = frozenset()  # that may push

    def on_message(self, message: FromCoordinator) -> Effects:
        """All connections that had ended before it came are told before: it may name newcomers in their slots."""
        match message:
            case MayPush(workers):
                self._workers = workers
            case Refused(_, reason):
                return [GoAway(reason)]
        return []

    def on_closed(self, slot: int) -> Effects:
        """The connection to the worker in this slot has ended. Where its loss is decided, a joiner may be there."""
        known = [worker for worker in self._workers if worker.slot == slot]
        return [suspicion(worker) for worker in (known if self._workers else [Process("worker", slot, "")])]

    def waits_for(self, workers: Collection[int]) -> Processes:
        """The members among those in these slots, for which this server waits in vain."""
        return frozenset(worker for worker in self._workers if worker.slot in workers)
