"""A worker's part in sums over servers, as the reference for the C++ plane. Pure.

The rules are those of `dynamix_ps/byteps_build/sources/elastic_exchange.h` and `exchange.h`; the methods are the ones
of a `WorkerPlane` (`dynamix_ps/comm/plane.py`) that need no clock. Values that travel by codecs, and when a piece
leaves a worker whose window is full (`lane.h`), have tests of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from dynamix_ps.membership.sums import SumProgress
from tests.models.membership.pieces import Answer, Key, ProtocolError, Push, Value


@dataclass(slots=True)
class _Pushed:
    """A buffer that is pushed in the open round."""

    value: Value
    contributions: int
    generation: int
    servers: list[int]  # of every piece
    sums: dict[int, frozenset[Value]] = field(default_factory=dict)  # by piece, those that have arrived

    @property
    def missing(self) -> int:
        return len(self.servers) - len(self.sums)


class Exchange:
    """The sums of one worker. Servers have numbers, their slots.

    `push` and `resume` append what the worker sends to `outgoing`: the slot of a server, and the push. The caller sends
    it in this order, and empties the list.
    """

    def __init__(self, worker: int, pieces: Sequence[int], contributions: int, servers: int) -> None:
        """
        Args:
            worker: rank, for errors.
            pieces: number of pieces of every buffer.
            contributions: workers that the job begins with.
            servers: number of slots; all of these servers have pieces until one is lost.
        """
        self.worker, self.pieces, self.slots = worker, pieces, servers
        self.outgoing: list[tuple[int, Push]] = []
        self._contributions = contributions
        self._servers: list[int] = list(range(servers))
        self._open: dict[int, _Pushed] = {}  # by number, in the order of the pushes
        self._round = 0
        self._generation = 0
        self._frozen = False

    # The training thread.

    def push(self, number: int, value: Value) -> None:
        """Push all pieces of a buffer. `value` is sent again as it is until the round is complete.

        Raises:
            ProtocolError: the buffer is pushed already in this round.
        """
        if number in self._open:
            raise ProtocolError(f"worker {self.worker}: buffer {number} is pushed twice in round {self._round}")
        self._open[number] = _Pushed(value, self._contributions, self._generation, self._placed(number))
        self._send(number)

    def wait(self) -> dict[Key, frozenset[Value]] | None:
        """Complete the open round: whose contributions are in the sum of each piece.

        None: an answer is missing, the worker is frozen, or nothing is pushed.
        """
        if self._frozen or not self._open or any(pushed.missing for pushed in self._open.values()):
            return None
        sums = {(n, piece): values for n, pushed in self._open.items() for piece, values in pushed.sums.items()}
        self._open.clear()
        self._round += 1
        return sums

    def expect(self, contributions: int) -> None:
        """Raises ProtocolError within a round."""
        self._change(contributions)

    def enter(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> int:
        """Returns the number of the round: the servers have the sums of earlier rounds."""
        self._change(contributions)
        self.use_servers_without(lost_servers)
        self._generation, self._round = generation, round_number
        return round_number

    def use_servers_without(self, lost_servers: Collection[int]) -> None:
        """Raises ValueError if no server is left."""
        self.spread(self.servers_without(lost_servers))

    def spread(self, servers: Sequence[int]) -> None:
        """Give the pieces of buffers that are pushed from now on to these servers, over and over."""
        self._servers = list(servers)

    # The network.

    def take(self, server: int, answer: Answer) -> None:
        """An answer arrives. It counts if it is of the last push of its buffer in the open round.

        Raises:
            ProtocolError: an answer that counts comes from a server that was not asked.
        """
        number, piece = answer.key
        pushed = self._open.get(number)
        if pushed is None or (answer.round, answer.generation) != (self._round, pushed.generation):
            return
        if piece >= len(pushed.servers) or piece in pushed.sums:
            return
        if pushed.servers[piece] != server:
            raise ProtocolError(f"worker {self.worker}: server {server} answers what it was not asked: {answer}")
        pushed.sums[piece] = answer.values

    # The control thread.

    def meet(self, addresses: Mapping[int, str], leaving: Collection[int] = ()) -> None:
        """Does nothing: the servers know the workers."""

    def freeze(self) -> SumProgress:
        """No round completes until `resume`."""
        self._frozen = True
        return self.status()

    def status(self) -> SumProgress:
        """The first round that is not complete, and the missing pieces of its buffers."""
        missing = {number: pushed.missing for number, pushed in self._open.items() if pushed.missing}
        return SumProgress(self._round, missing)

    def unanswered(self) -> frozenset[int]:
        """Servers that have a piece of the open round and have not answered."""
        return frozenset(
            server
            for pushed in self._open.values()
            for piece, server in enumerate(pushed.servers)
            if piece not in pushed.sums
        )

    def resume(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> None:
        """Go on in a new generation, as `ElasticWorker.resume` does.

        Raises:
            ValueError: this worker is neither in this round nor one behind, it has had this generation, or no server is
                left.
        """
        servers = self.servers_without(lost_servers)
        if generation <= self._generation or round_number not in (self._round, self._round + 1):
            raise ValueError(
                f"worker {self.worker}: cannot resume with generation {generation} at round {round_number}: "
                f"it is at round {self._round} of generation {self._generation}"
            )
        self._generation, self._contributions, self._servers = generation, contributions, servers
        if round_number == self._round:
            for number, pushed in self._open.items():
                self._open[number] = _Pushed(pushed.value, contributions, generation, self._placed(number))
                self._send(number)
        self._frozen = False

    def _change(self, contributions: int) -> None:
        if self._open:
            raise ProtocolError(f"worker {self.worker}: contributions change within round {self._round}")
        self._contributions = contributions

    def servers_without(self, lost: Collection[int]) -> list[int]:
        """The servers that are left, in order. Raises ValueError if none is."""
        left = [server for server in range(self.slots) if server not in lost]
        if not left:
            raise ValueError(f"worker {self.worker}: all {self.slots} servers are lost, expected one that is left")
        return left

    def _placed(self, number: int) -> list[int]:
        """The server of every piece: not all buffers begin at the same one."""
        return [self._servers[(number + piece) % len(self._servers)] for piece in range(self.pieces[number])]

    def _send(self, number: int) -> None:
        pushed = self._open[number]
        for piece, server in enumerate(pushed.servers):
            push = Push((number, piece), self._round, pushed.generation, pushed.contributions, pushed.value)
            self.outgoing.append((server, push))
