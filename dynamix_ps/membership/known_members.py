"""The members of an elastic job as one worker knows them: who makes the rounds, and who is lost. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynamix_ps.membership.messages import Process, Processes


@dataclass(frozen=True, slots=True)
class Planned:
    """Who makes a round: its workers, the servers that have keys, gone ones too, and the newest decision on losses."""

    workers: Sequence[Process]
    servers: Sequence[Process]
    generation: int

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Planned:
        """From JSON's types."""
        workers, servers = ([Process(**one) for one in fields[role]] for role in ("workers", "servers"))
        return cls(workers, servers, fields["generation"])


class KnownMembers:
    """Not thread safe.

    Attributes:
        own: the worker itself.
        is_late: it came while the others train, and is in no round yet.
        planned: workers that have a slot, by slot.
        left: slots of those whose last round this worker has completed.
        placed: servers that have keys unless they are lost, by slot.
        gone: whoever is lost or has left by the newest decision, and the refused ones.
        refused: newcomers that had no state at a decision.
    """

    def __init__(self, own: Process, workers: int, late: bool) -> None:
        self.own, self.is_late = own, late
        self.planned = {slot: Process("worker", slot, "") for slot in range(workers)}
        self.left: set[int] = set()
        self.placed: dict[int, Process] = {}
        self.gone: Processes = frozenset()
        self.refused: Processes = frozenset()
        self._met: dict[int, Process] = {}  # by slot, the newest of those that came late and have answered

    def begin_with(self, members: Collection[Process]) -> None:
        """These workers, and servers, make the first round that this worker is in."""
        self.planned = {one.slot: one for one in members if one.role == "worker"}
        self.place([one for one in members if one.role == "server"])

    def decide(self, gone: Processes, without_state: Processes) -> None:
        """The newest decision is that these are gone, and these are refused."""
        self.refused |= without_state
        self.gone = gone | self.refused

    def present(self) -> list[Process]:
        """The workers that are in the coming round."""
        return [one for slot, one in self.planned.items() if slot not in self.left and one not in self.gone]

    def place(self, servers: Collection[Process]) -> None:
        """They have keys from now on, in the places of others."""
        self.placed.update({server.slot: server for server in servers})

    def meet(self, server: Process) -> None:
        """There is a connection to it, on which it has answered."""
        self._met[server.slot] = server

    def has_met(self, server: Process) -> bool:
        """Whether it may get keys. A worker gets none, and neither does who is lost."""
        return server.role == "worker" or server in self.gone or self._met.get(server.slot) == server

    @property
    def lost(self) -> frozenset[int]:
        """Slots whose server is lost, and where no other one has keys."""
        return frozenset(slot for slot, server in self.placed.items() if server in self.gone)

    @property
    def none_is_left(self) -> bool:
        """All that had keys are lost. A ring never had any."""
        return bool(self.placed) and self.placed.keys() <= self.lost

    def connected(self, slot: int) -> Process | None:
        """The server of this slot to which this worker has connected last, as far as it knows."""
        return self._met.get(slot) or self.placed.get(slot)

    def serving(self, slots: Collection[int]) -> list[Process]:
        """Those of these slots that have keys and are not lost."""
        return [server for slot, server in self.placed.items() if slot in slots and server not in self.gone]
