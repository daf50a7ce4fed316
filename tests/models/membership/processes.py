"""The processes of the model: a worker and a server as they run, with messages in the place of I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from dynamix_ps.membership.effects import GoAway, Tell
from dynamix_ps.membership.messages import (
    COORDINATOR,
    Finish,
    FromCoordinator,
    LeaveAsked,
    Process,
    ToCoordinator,
)
from dynamix_ps.membership.ring_worker import Ring
from dynamix_ps.membership.server import Server
from dynamix_ps.membership.worker import Effects, Worker
from tests.models.membership.pieces import Answer, Push
from tests.models.membership.planes import Kept, Named, Piece, Released, RingPlane, ServerPlane
from tests.models.membership.round_table import RoundTable
from tests.models.membership.trainer import Handover, Phase, Taken, Told, Trainer

Send: TypeAlias = Callable[[Process, Any], None]
BROKEN_S = 1.0  # so long has a ring failed when the coordinator is asked for another


@dataclass(frozen=True, slots=True)
class Closed:
    """In a channel: the connection has ended."""


class Stream:
    """What a process tells the coordinator, and tells again on a new connection."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._kept: list[ToCoordinator] = []

    def tell(self, effect: Tell) -> None:
        if effect.keep and effect.message not in self._kept:
            self._kept.append(effect.message)
        self._send(COORDINATOR, effect.message)

    def connect(self, *first: ToCoordinator) -> None:
        """A connection is made."""
        for message in (*first, *self._kept):
            self._send(COORDINATOR, message)


class WorkerProcess:
    """A worker.

    Args:
        send: to a process.
        connected: the process at the other end of the connection to the server in a slot.
    """

    def __init__(
        self,
        core: Worker,
        trainer: Trainer,
        plane: ServerPlane | RingPlane,
        send: Send,
        connected: Callable[[int], Process | None],
    ) -> None:
        self.core, self.trainer, self.plane = core, trainer, plane
        self.stream = Stream(send)
        self._send, self._connected = send, connected
        self._is_over = False  # it has said its last word
        self._closed: set[str] = set()  # addresses of workers that are gone
        self._broken_since_s = 0.0
        self._told_broken: Ring | None = None

    @property
    def over(self) -> str:
        """Why it has ended."""
        return self.trainer.over

    def act(self) -> None:
        """One step of the thread that trains."""
        self.follow(self.trainer.act())

    def look(self, now_s: float, since_s: float) -> None:
        """A look of the thread beside it, `since_s` after the one before."""
        if self.trainer.phase is Phase.DEPART:
            self.trainer.waited_s += since_s
        self.follow([*self.core.on_time(now_s), *self._look_for_closed(now_s)])

    def on_coordinator(self, message: FromCoordinator, now_s: float) -> None:
        self.follow(self.core.on_message(message, now_s))

    def on_peer(self, sender: Process, message: Any) -> None:
        """A message of a server or of another worker."""
        trainer = self.trainer
        match message:
            case Answer():
                assert isinstance(self.plane, ServerPlane)
                self.plane.exchange.take(sender.slot, message)
            case Named() | Piece() | Kept() | Released():
                assert isinstance(self.plane, RingPlane)
                self.plane.on_message(sender.slot, message)
            case Taken():
                if giver := trainer.votes.newcomers.here.get(sender):
                    giver.sent(1)
                    giver.taken(1)
            case Handover() | Told() if sender == (trainer.giver or (trainer.inbox or [(sender, None)])[0][0]):
                trainer.inbox.append((sender, message))
            case Handover() | Told():
                self._send(sender, Closed())  # it listens once
            case Closed():
                self._on_closed(sender)
        self.follow([])

    def _on_closed(self, peer: Process) -> None:
        trainer = self.trainer
        if giver := trainer.votes.newcomers.here.get(peer):
            giver.end()
        if peer == trainer.giver or any(sender == peer for sender, _ in trainer.inbox):
            trainer.giver_is_gone = True
        if isinstance(self.plane, RingPlane):
            self._closed.add(peer.address)
            self.plane.closed.add(peer.address)
            self.plane.on_broken(peer.slot)
        elif isinstance(self.plane, ServerPlane) and peer.role == "server":
            self.follow(self.core.on_closed("server", peer.slot))

    def _look_for_closed(self, now_s: float) -> Effects:
        """In a ring that is broken, it looks who of the others is gone, and then asks for another ring."""
        if not isinstance(self.plane, RingPlane) or not self.plane.core.is_broken:
            self._broken_since_s = now_s
            return []
        gone = {rank: address for rank, address in self.plane.core.others().items() if address in self._closed}
        self._closed.difference_update(gone.values())  # each is told once
        effects = [effect for rank in gone for effect in self.core.on_closed("worker", rank)]
        newest = self.plane.core.making or self.plane.core.ring
        if newest is not None and newest != self._told_broken and now_s - self._broken_since_s >= BROKEN_S:
            self._told_broken = newest
            effects += self.core.on_closed("ring", newest.generation)
        return effects

    def servers_to_meet(self) -> list[Process]:
        """Those that it asks whether they answer."""
        wanted = self.core.not_met()
        if self.trainer.phase in (Phase.ADMIT, Phase.ENTER):
            wanted += self.trainer.servers_to_meet()
        return wanted

    def meet(self, server: Process) -> None:
        """The server answers."""
        self.core.met(server)

    def follow(self, effects: Any) -> None:
        """Do what follows from an event, and send what the sums have to send."""
        for effect in effects:
            match effect:
                case Tell():
                    self.stream.tell(effect)
                case GoAway(reason):
                    self.trainer.stop(reason)
                case LeaveAsked():
                    self.trainer.leaving = True
                case Finish():
                    self.trainer.ending = True
        if isinstance(self.plane, ServerPlane):
            for slot, push in self.plane.exchange.outgoing:
                if (server := self._connected(slot)) is not None:
                    self._send(server, push)
            self.plane.exchange.outgoing.clear()
        for receiver, message in self.trainer.outgoing:
            self._send(receiver, message)
        self.trainer.outgoing.clear()
        if self.trainer.phase is Phase.OVER and self.trainer.last_word is not None and not self._is_over:
            self._is_over = True
            self._send(COORDINATOR, self.trainer.last_word)


class ServerProcess:
    """A server. `connected`: the worker at the other end of the connection to the worker in a slot."""

    def __init__(self, own: Process, table: RoundTable, send: Send, connected: Callable[[int], Process | None]) -> None:
        self.own, self.table, self.core = own, table, Server()
        self.stream = Stream(send)
        self.over = ""
        self._send, self._connected = send, connected

    def on_coordinator(self, message: FromCoordinator) -> None:
        self._follow(self.core.on_message(message))

    def on_peer(self, sender: Process, message: Any) -> None:
        """A message of a worker."""
        match message:
            case Push():
                for slot, answer in self.table.push(sender.slot, message):
                    if (worker := self._connected(slot)) is not None:
                        self._send(worker, answer)
            case Closed() if sender.role == "worker":
                self._follow(self.core.on_closed(sender.slot))

    def _follow(self, effects: Any) -> None:
        for effect in effects:
            match effect:
                case Tell():
                    self.stream.tell(effect)
                case GoAway(reason):
                    self.over = reason
