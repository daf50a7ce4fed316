"""Channels between processes, for the model of membership: each keeps its order, and any may be next."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from dynamix_ps.membership.messages import COORDINATOR, Process


class Cut(NamedTuple):
    """A partition of one process from the others.

    Attributes:
        coordinator_only: from the coordinator alone.
        hears, speaks: what others send arrives, or what it sends itself: then it is cut off in one direction.
    """

    coordinator_only: bool
    hears: bool = False
    speaks: bool = False


class Network:
    """Messages on their way."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._channels: dict[tuple[Process, Process], deque[Any]] = {}  # only those with messages
        self._blocked: dict[Process, Cut] = {}
        self._held: set[tuple[Process, Process]] = set()
        self.was_blocked: set[Process] = set()
        self.hides_coordinator = False  # it hears the launcher alone, which is beside it

    def send(self, sender: Process, messages: Iterable[tuple[Process, Any]]) -> None:
        """Each message behind the others of its channel."""
        for receiver, message in messages:
            self._channels.setdefault((sender, receiver), deque()).append(message)

    def deliverable(self) -> list[tuple[Process, Process]]:
        """Channels whose first message may arrive now."""
        if self.is_whole:
            return list(self._channels)
        return [channel for channel in self._channels if not self._cut(*channel)]

    def take(self, channel: tuple[Process, Process]) -> Any:
        """The first message of a channel."""
        waiting = self._channels[channel]
        message = waiting.popleft()
        if not waiting:
            del self._channels[channel]
        return message

    def block(self, process: Process, cut: Cut) -> None:
        """Hold what goes to and comes from a process."""
        self.was_blocked.add(process)
        self._blocked[process] = cut

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
        return (process not in self._blocked or self._blocked[process].speaks) and not self.hides_coordinator

    def is_blocked(self, process: Process) -> bool:
        """A partition holds it, or its link to the coordinator."""
        return process in self._blocked

    def is_cut_off(self, process: Process) -> bool:
        """It answers no question of others."""
        return process in self._blocked and not self._blocked[process].coordinator_only

    def is_sending(self, sender: Process, receiver: Process) -> bool:
        """Something is on its way."""
        return (sender, receiver) in self._channels

    def arriving(self, sender: Process, receiver: Process) -> list[Any]:
        """What is on its way, if nothing holds it."""
        return [] if self._cut(sender, receiver) else list(self._channels.get((sender, receiver), ()))

    @property
    def is_whole(self) -> bool:
        """Nothing is held."""
        return not (self._held or self._blocked or self.hides_coordinator)

    def heal(self) -> None:
        """Nothing is held any more."""
        self._held.clear()
        self._blocked.clear()

    def lose(self, which: Callable[[Any], bool]) -> None:
        """These messages will not arrive."""
        for channel, waiting in list(self._channels.items()):
            self._keep(channel, [message for message in waiting if not which(message)])

    def cut(self, process: Process, keep: Callable[[Process, Any], bool] | None = None) -> None:
        """It died: nothing arrives there, and of what it sent to each receiver a part, or what `keep` says."""
        for (sender, receiver), waiting in list(self._channels.items()):
            if receiver == process:
                self._keep((sender, receiver), [])
            elif sender == process and keep is not None:
                self._keep((sender, receiver), [message for message in waiting if keep(receiver, message)])
            elif sender == process:
                self._lose_some((sender, receiver))

    def reconnect(self, process: Process) -> None:
        """The connection to the coordinator is made anew: in both directions the last messages may be lost."""
        for channel in ((process, COORDINATOR), (COORDINATOR, process)):
            self._lose_some(channel)

    def _lose_some(self, channel: tuple[Process, Process]) -> None:
        waiting = list(self._channels.get(channel, ()))
        self._keep(channel, waiting[: self._rng.randint(0, len(waiting))])

    def _keep(self, channel: tuple[Process, Process], messages: Iterable[Any]) -> None:
        self._channels[channel] = deque(messages)
        if not self._channels[channel]:
            del self._channels[channel]

    def _cut(self, sender: Process, receiver: Process) -> bool:
        if (sender, receiver) in self._held:
            return True
        if self.hides_coordinator and COORDINATOR in (sender, receiver) and sender.role != "launcher":
            return True
        cuts = []
        if sender in self._blocked and not self._blocked[sender].speaks:
            cuts.append(self._blocked[sender])
        if receiver in self._blocked and not self._blocked[receiver].hears:
            cuts.append(self._blocked[receiver])
        return any(COORDINATOR in (sender, receiver) or not cut.coordinator_only for cut in cuts)
