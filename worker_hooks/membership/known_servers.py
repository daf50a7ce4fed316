"""The servers of an elastic job as one worker knows them: which have keys, which it has met, which are lost. Pure."""

from __future__ import annotations

from collections.abc import Collection

from dynamix_ps.membership.messages import Process, Processes


class KnownServers:
    """Not thread safe.

    Attributes:
        placed: those that have keys unless they are lost, by slot.
        gone: whoever is lost or has left, workers too, by the newest decision.
    """

    def __init__(self) -> None:
        self.placed: dict[int, Process] = {}
        self.gone: Processes = frozenset()
        self._met: dict[int, Process] = {}  # by slot, the newest of those that came late and have answered

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
