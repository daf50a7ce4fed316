"""Channels between processes, for the model of membership: each keeps its order, and any may be next."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from dynamix_ps.membership.messages import COORDINATOR, Process


class Network:
    """Messages on their way."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._channels: dict[tuple[Process, Process], deque[Any]] = {}
        self._blocked: dict[Process, bool] = {}  # a partition; True: only the link to the coordinator
        self._held: set[tuple[Process, Process]] = set()

    def send(self, sender: Process, messages: Iterable[tuple[Process, Any]]) -> None:
        """Each message behind the others of its channel."""
        for receiver, message in messages:
            self._channels.setdefault((sender, receiver), deque()).append(message)

    def deliverable(self) -> list[tuple[Process, Process]]:
        """Channels whose first message may arrive now."""
        return [channel for channel, waiting in self._channels.items() if waiting and not self._cut(*channel)]

    def take(self, channel: tuple[Process, Process]) -> Any:
        """The first message of a channel."""
        return self._channels[channel].popleft()

    def block(self, process: Process, coordinator_only: bool = False) -> None:
        """Hold everything to and from a process."""
        self._blocked[process] = coordinator_only

    def hold(self, sender: Process, receiver: Process) -> None:
        """A slow link: nothing arrives there until `release`."""
        self._held.add((sender, receiver))

    def release(self) -> None:
        """What slow links have held arrives."""
        self._held.clear()

    def unblock(self, process: Process) -> None:
        """What was held goes on."""
        self._blocked.pop(process, None)

    @property
    def blocked(self) -> list[Process]:
        """Processes behind a partition."""
        return list(self._blocked)

    def reaches_coordinator(self, process: Process) -> bool:
        """Its heartbeats arrive."""
        return process not in self._blocked

    def is_blocked(self, process: Process) -> bool:
        """A partition holds it, or its link to the coordinator."""
        return process in self._blocked

    def is_cut_off(self, process: Process) -> bool:
        """Nothing comes from it or goes to it."""
        return self._blocked.get(process) is False

    def is_sending(self, sender: Process, receiver: Process) -> bool:
        """Something is on its way."""
        return bool(self._channels.get((sender, receiver)))

    def lose(self, which: Callable[[Any], bool]) -> None:
        """These messages will not arrive."""
        for waiting in self._channels.values():
            kept = [message for message in waiting if not which(message)]
            if len(kept) < len(waiting):
                waiting.clear()
                waiting.extend(kept)

    def cut(self, process: Process, keep: Callable[[Process, Any], bool] | None = None) -> None:
        """It died: nothing arrives there, and of what it sent to each receiver a part, or what `keep` says."""
        for (sender, receiver), waiting in self._channels.items():
            if receiver == process:
                waiting.clear()
            elif sender == process and keep is not None:
                kept = [message for message in waiting if keep(receiver, message)]
                waiting.clear()
                waiting.extend(kept)
            elif sender == process:
                self._lose_some(waiting)

    def reconnect(self, process: Process) -> None:
        """The connection to the coordinator is made anew: in both directions the last messages may be lost."""
        for channel in ((process, COORDINATOR), (COORDINATOR, process)):
            self._lose_some(self._channels.get(channel, deque()))

    def _lose_some(self, waiting: deque[Any]) -> None:
        for _ in range(self._rng.randint(0, len(waiting))):
            waiting.pop()

    def _cut(self, sender: Process, receiver: Process) -> bool:
        return (sender, receiver) in self._held or any(
            process in self._blocked and (not self._blocked[process] or COORDINATOR in (sender, receiver))
            for process in (sender, receiver)
        )
