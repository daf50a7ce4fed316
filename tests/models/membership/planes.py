"""The sums of the model's workers: over servers by the reference of the C++ plane, in a ring by the class that runs.

A ring completes a part on a worker when the parts of all have come there, on some workers earlier than on others. This
is what counts here; on which way they come does not. What is on its way in a ring is lost where a member of it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from dynamix_ps.membership.messages import Process
from dynamix_ps.membership.ring_worker import (
    Effect,
    Meet,
    Ring,
    RingWorker,
    SpreadKept,
    StartSum,
)
from dynamix_ps.membership.sums import SumProgress
from tests.models.membership.exchange import Exchange
from tests.models.membership.pieces import ProtocolError
from tests.models.membership.training import Part, Parts


class ServerPlane:
    """Sums over servers. Control-plane calls go to `exchange` itself."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.departed = False

    def push(self, number: int, part: Part) -> None:
        self.exchange.push(number, part)

    def wait(self) -> Mapping[Any, Parts] | None:
        return self.exchange.wait()  # type: ignore[return-value]

    def depart(self) -> None:
        self.departed = True  # the servers have the sums that others need

    def status(self) -> Any:
        return self.exchange.status()


@dataclass(frozen=True, slots=True)
class Named:
    """To all members of a ring: here I am, and this is the first round that I have not completed."""

    ring: Ring
    round: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a round, on its way around a ring."""

    ring: Ring
    number: int  # of the sums that have begun in this ring
    part: int
    value: Part


@dataclass(frozen=True, slots=True)
class Kept:
    """The sums of the round before, for those that lack them."""

    ring: Ring
    sums: Mapping[int, Parts]


@dataclass(frozen=True, slots=True)
class Released:
    """Whoever sends it needs the ring no more."""

    ring: Ring


RingMessage: TypeAlias = Named | Piece | Kept | Released


def first_address(slot: int) -> str:
    """Of a worker that the job begins with. The first ring does not know it."""
    return f"worker {slot} first"


class RingPlane:
    """The sums of one worker in a ring: `RingWorker`, with messages in the place of gloo.

    Args:
        address: of this worker.
        find: the process with this address.
    """

    def __init__(self, own: Process, ring: Ring | None, send: Callable[[str, RingMessage], None]) -> None:
        self.own, self._send = own, send
        self.core = RingWorker(own.slot, ring)
        self.closed: set[str] = set()  # addresses of those whose connections have ended
        self._values: list[Part] = []  # of the open round
        self._sums: dict[int, Parts] = {}  # by part
        self._kept: Mapping[int, Parts] = {}
        self._begun: dict[Ring, list[int]] = {}  # the part of each sum
        self._pieces: dict[tuple[Ring, int], dict[int, tuple[int, Part]]] = {}  # by ring and number of the sum: by rank
        self._meeting: set[Ring] = set()
        self._named: dict[Ring, dict[int, int]] = {}
        self._given: dict[Ring, Mapping[int, Parts]] = {}
        self._released: dict[Ring, set[int]] = {}
        self._spreading: dict[Ring, SpreadKept] = {}

    # The training thread.

    def push(self, number: int, part: Part) -> None:
        assert number == len(self._values), "in order"
        self._values.append(part)
        self._follow(self.core.push()[1])

    def wait(self) -> Mapping[Any, Parts] | None:
        if self.core.is_held or self.core.next_part() is not None or not self._values:
            return None
        self.core.complete()
        self._kept, self._sums, self._values = self._sums, {}, []
        return self._kept

    def depart(self) -> None:
        self.core.depart()
        self._follow([])

    @property
    def departed(self) -> bool:
        return self.core.departed

    # The control plane.

    def meet(self, addresses: Mapping[int, str], leaving: Collection[int] = ()) -> None:
        self.core.meet(addresses, leaving)

    def freeze(self) -> SumProgress:
        return self.core.freeze()

    def status(self) -> SumProgress:
        return self.core.status()

    def resume(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> None:
        self._follow(self.core.resume(generation, round_number, contributions, lost_servers))

    def expect(self, contributions: int) -> None:
        self._follow(self.core.expect(contributions))

    def enter(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> int:
        first, effects = self.core.enter(generation, round_number, contributions, lost_servers)
        self._follow(effects)
        return first

    def unanswered(self) -> frozenset[int]:
        return frozenset()

    def use_servers_without(self, lost_servers: Collection[int]) -> None:
        raise AssertionError("a ring has no servers")

    # The network.

    def on_message(self, sender: int, message: RingMessage) -> None:
        """`sender`: its rank."""
        match message:
            case Named(ring, number):
                self._named.setdefault(ring, {})[sender] = number
                self._look_for_all(ring)
            case Piece(ring, number, part, value):
                self._pieces.setdefault((ring, number), {})[sender] = part, value
                self._look_for_sum(ring, number)
            case Kept(ring, sums):
                self._given[ring] = sums
                self._look_for_kept(ring)
            case Released(ring):
                self._released.setdefault(ring, set()).add(sender)
                self._look_for_end(ring)

    def on_broken(self, rank: int) -> None:
        """The operation at hand fails: this member of the ring is gone."""
        ring, part = self.core.ring, self.core.next_part()
        if ring is not None and part is not None and rank in dict(ring.members):
            self.core.failed(ring)

    def fail(self) -> None:
        """The operation at hand fails, though all members live."""
        if (ring := self.core.making or self.core.ring) is not None:
            self._meeting.discard(ring)
            self._spreading.pop(ring, None)
            self.core.failed(ring)

    def _is_gone(self, rank: int, address: str) -> bool:
        return (address or first_address(rank)) in self.closed

    def passes_on(self, ring: Ring) -> bool:
        """Whether what others send in this ring may go through this worker."""
        return self.own.slot in dict(ring.members)

    def _follow(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Meet(ring, before):
                    if self.own.slot in self._named.get(ring, {}):
                        raise ProtocolError(f"{self.own} makes {ring} twice")
                    if before is not None:
                        self._release(before)
                    self._sums.clear()
                    self._named.setdefault(ring, {})[self.own.slot] = self.core.round
                    self._to_all(ring, Named(ring, self.core.round))
                    self._meeting.add(ring)
                    self._look_for_all(ring)
                case StartSum(ring, part):
                    value, begun = self._values[part], self._begun.setdefault(ring, [])
                    begun.append(part)
                    self._pieces.setdefault((ring, len(begun) - 1), {})[self.own.slot] = part, value
                    self._to_all(ring, Piece(ring, len(begun) - 1, part, value))
                    self._look_for_sum(ring, len(begun) - 1)
                    if part not in self._sums and any(self._is_gone(*member) for member in ring.members):
                        self.core.failed(ring)
                case SpreadKept(ring, sender):
                    self._spreading[ring] = effect
                    if ring.members[sender][0] == self.own.slot:
                        self._given[ring] = self._kept
                        self._to_all(ring, Kept(ring, self._kept))
                    self._look_for_kept(ring)
        if (last := self.core.released) is not None and self.own.slot not in self._released.get(last, ()):
            self._release(last)

    def _release(self, ring: Ring) -> None:
        self._to_all(ring, Released(ring))
        self._released.setdefault(ring, set()).add(self.own.slot)
        self._look_for_end(ring)

    # What ends in a ring that was given up is told, too: it may have ended before, and come late.

    def _look_for_all(self, ring: Ring) -> None:
        named = self._named.get(ring, {})
        if ring in self._meeting and named.keys() == dict(ring.members).keys():
            self._meeting.remove(ring)
            self._follow(self.core.met(ring, [named[rank] for rank, _ in ring.members]))

    def _look_for_sum(self, ring: Ring, number: int) -> None:
        pieces = self._pieces[ring, number]
        if pieces.keys() == dict(ring.members).keys():
            part = self._begun[ring][number]
            if len({(one, value.round) for one, value in pieces.values()}) > 1:
                raise ProtocolError(f"{self.own}: a sum of different parts: {pieces}")
            if ring == self.core.ring:
                self._sums[part] = frozenset(value for _, value in pieces.values())
            self.core.summed(ring, part)

    def _look_for_kept(self, ring: Ring) -> None:
        if ring in self._spreading and ring in self._given:
            if self._spreading.pop(ring).receives and ring == self.core.making:
                self._sums = {part: self._given[ring][part] for part in range(len(self._values))}
            self._follow(self.core.spread(ring))

    def _look_for_end(self, ring: Ring) -> None:
        if self._released.get(ring, set()) == dict(ring.members).keys():
            self.core.finished(ring)

    def _to_all(self, ring: Ring, message: RingMessage) -> None:
        for rank, address in ring.members:
            if rank != self.own.slot:
                self._send(address or first_address(rank), message)
