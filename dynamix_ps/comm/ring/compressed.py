"""Sums over a ring whose float32 values travel encoded (codecs.py). They are summed in float32.

    push -> (thread) encode, scatter -> (thread) sum, encode, gather -> wait -> deliver

Each worker owns a piece of the buffer. In the first phase it sends each other worker its values of the other's piece.
In the second phase the owner sends the sum of its piece to all. All use what they decode of the second phase, the owner
too, so that all have equal bits. What encoding leaves out in either phase is added in the next sum of this buffer.

Each phase has a ring of its own, because all members must start the operations of a ring in one order, and nobody knows
when the first phase of a sum is complete.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from dynamix_ps.comm.ring.codecs import BLOCK, CODECS, Codec
from dynamix_ps.comm.ring.group import RingGroup, is_complete
from dynamix_ps.comm.torch_buffers import without_beginning

LEAST_VALUES = 16384  # of a buffer; below, at 200 Mbit/s, encoding and a second phase last longer than what they save
_LEAST_BLOCKS = 4  # of a piece; below, too much of it would be padding
_LOOK_S = 0.5  # a thread that waits for others sees so often whether the process ends


class Pieces:
    """The buffer of one name: what encoding has left out so far, and memory for what travels.

    Attributes:
        rounded: so many values at the beginning of the buffer travel encoded.
        codec: how.
        left_out: float32, shape (members, values of a piece). Row i is of the piece that member i owns: what encoding
            has left out of this worker's values, or of the sum if this worker is the owner. While a sum is made, the
            values of this worker are in it too.
        sent, received: uint8, shape (members, bytes of a piece).
    """

    def __init__(self, rounded: int, members: int, codec: Codec) -> None:
        import torch

        blocks = -(-rounded // (members * BLOCK))
        self.rounded, self.codec = rounded, codec
        self.left_out = torch.zeros(members, blocks * BLOCK)
        self.sent = torch.zeros(members, blocks * codec.block_bytes, dtype=torch.uint8)
        self.received = torch.zeros_like(self.sent)


class CompressedSum:
    """The sum of one buffer, with the interface of torch's `Work`.

    Args:
        tail, exact: the values behind the rounded ones, and their sum in place; None: there are none.
    """

    def __init__(self, pieces: Pieces, buffer: Any, begin: int, tail: Any, exact: Any) -> None:
        self.pieces, self.buffer, self.begin = pieces, buffer, begin
        self.kept: Any = None  # what was left out before `begin`: it stays for a later sum
        self._tail, self._works = tail, [] if exact is None else [exact]
        self._error: BaseException | None = None
        self._gathers = threading.Event()

    def gathers(self, work: Any) -> None:
        """The second phase has begun."""
        self._works.append(work)
        self._gathers.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._gathers.set()

    def wait(self, limit: timedelta) -> None:
        """Raises RuntimeError: the limit has passed, or another worker is gone."""
        deadline_s = time.monotonic() + limit.total_seconds()
        if not self._gathers.wait(limit.total_seconds()):
            raise RuntimeError("the first phase is not complete")
        if self._error is not None:
            raise self._error
        for work in self._works:
            work.wait(timedelta(seconds=max(deadline_s - time.monotonic(), 1e-3)))  # 0 means no limit

    def is_completed(self) -> bool:
        """Whether the sum is complete or has failed."""
        if not self._gathers.is_set():
            return False
        works = [work for work in self._works if not (work.is_completed() and work.is_success())]
        return self._error is not None or not works or any(work.is_completed() for work in works)

    def is_success(self) -> bool:
        return self._error is None and all(work.is_success() for work in self._works)

    def deliver(self) -> None:
        """Put the complete sum into the buffer."""
        rounded, size = self.pieces.rounded, self.pieces.left_out.shape[1]
        stays = self.buffer[: min(self.begin, rounded)].clone()
        for owner, encoded in enumerate(self.pieces.received):
            self.pieces.codec.decode(encoded, self.buffer[owner * size : min((owner + 1) * size, rounded)])
        self.buffer[: len(stays)] = stays
        if self.begin > rounded:
            self.buffer[self.begin :] = self._tail[self.begin - rounded :]


class CompressedSums:
    """Starts the sums of a worker that travel encoded.

    Args:
        wire: of a buffer when it is declared, a key of CODECS; another one: as it is.
        scattering, gathering: rings of the two phases; nothing else may use them.
        start_exact: starts the sum in place of values that travel as they are.

    Attributes:
        least_values: a buffer with fewer that may be rounded travels as it is.
        wires: as in Comm.
    """

    wires: Sequence[str] = ()

    def __init__(
        self, wire: str, scattering: RingGroup, gathering: RingGroup, start_exact: Callable[[Any], Any]
    ) -> None:
        self._wire, self._start_exact = wire, start_exact
        self._rounded: dict[str, int] = {}  # values at the beginning of each declared buffer
        self.least_values = max(LEAST_VALUES, scattering.size * _LEAST_BLOCKS * BLOCK)
        self._scattering, self._gathering = scattering, gathering
        self._pieces: dict[str, Pieces] = {}
        self._ends = threading.Event()
        self._pushed: queue.SimpleQueue[CompressedSum | None] = queue.SimpleQueue()
        self._scattered: queue.SimpleQueue[tuple[CompressedSum, Any] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=phase, name=f"dynamix-{phase.__name__.strip('_')}", daemon=True)
            for phase in (self._scatter, self._gather)
        ]
        for thread in self._threads:
            thread.start()

    def declare(self, name: str, rounded: int) -> None:
        """As in Comm. What was left out of an earlier buffer of this name is forgotten."""
        self._rounded[name] = rounded
        self.set_wire(name, self._wire)

    def set_wire(self, name: str, wire: str) -> None:
        """As in Comm."""
        self._pieces.pop(name, None)
        codec, rounded = CODECS.get(wire), self._rounded[name]
        if codec and rounded >= self.least_values:  # here, as a first push may come in torch's inference mode
            self._pieces[name] = Pieces(rounded, self._scattering.size, codec)

    def takes(self, name: str, buffer: Any) -> bool:
        """Whether this buffer travels encoded: the same on all workers."""
        import torch

        return name in self._pieces and buffer.dtype == torch.float32 and buffer.device.type == "cpu"

    def start(self, name: str, buffer: Any, begin: int) -> CompressedSum:
        """Start the sum of a buffer that this takes."""
        pieces = self._pieces[name]
        rounded = pieces.rounded
        tail = exact = None
        if rounded < len(buffer):
            tail = without_beginning(buffer[rounded:], max(begin - rounded, 0))
            exact = self._start_exact(tail)
        one = CompressedSum(pieces, buffer, begin, tail, exact)
        self._pushed.put(one)
        return one

    def close(self) -> None:
        """End the threads: one that comes back from torch while the interpreter ends would abort it."""
        self._ends.set()
        self._pushed.put(None)
        for thread in self._threads:
            thread.join(4 * _LOOK_S)

    # Phases, each in a thread of its own.

    def _scatter(self) -> None:
        while (one := self._pushed.get()) is not None:
            try:
                self._encode(one)
                work = self._scattering.scatter(one.pieces.sent, one.pieces.received)
            except BaseException as error:
                one.fail(error)
            else:
                self._scattered.put((one, work))
        self._scattered.put(None)

    def _encode(self, one: CompressedSum) -> None:
        """Add the values of this sum to what is left out, and encode those for other workers."""
        left_out, rounded = one.pieces.left_out, one.pieces.rounded
        flat, begin = left_out.view(-1), min(one.begin, rounded)
        if begin:
            one.kept = flat[:begin].clone()
            flat[:begin] = 0
        flat[begin:rounded].add_(one.buffer[begin:rounded])
        for owner, (values, encoded) in enumerate(zip(left_out, one.pieces.sent, strict=True)):
            if owner != self._scattering.index:
                one.pieces.codec.encode(values, encoded)

    def _gather(self) -> None:
        while (next_one := self._scattered.get()) is not None:
            one, work = next_one
            try:
                while not is_complete(work, _LOOK_S):
                    if self._ends.is_set():
                        return
                own = self._sum(one)
                one.gathers(self._gathering.collect(own, one.pieces.received))
            except BaseException as error:
                one.fail(error)

    def _sum(self, one: CompressedSum) -> Any:
        """Add what the others have sent, in the order of ranks, to the piece of this worker. Returns it encoded."""
        left_out, received, codec = one.pieces.left_out, one.pieces.received, one.pieces.codec
        index = self._scattering.index
        total, decoded = left_out[index], left_out.new_empty(left_out.shape[1])
        for member, encoded in enumerate(received):
            if member != index:
                codec.decode(encoded, decoded)
                total.add_(decoded)
        own = one.pieces.sent[index]
        codec.encode(total, own)
        if one.kept is not None:
            left_out.view(-1)[: len(one.kept)].add_(one.kept)
        return own


def saves_bytes(hosts: Sequence[str], codec: Codec) -> bool:
    """Whether encoded sums bring fewer bytes over the busiest link between `hosts`, one of each worker.

    In the first phase each worker sends to every worker of another host; the second phase goes around the ring, as do
    both halves of a plain sum.
    """
    members, together = len(hosts), Counter(hosts)
    leave = Counter(here for here, after in zip(hosts, [*hosts[1:], hosts[0]], strict=True) if here != after)
    plain = max((2 * (members - 1) * leave[host] for host in together), default=0)
    encoded = max((count * (members - count) + (members - 1) * leave[host] for host, count in together.items()))
    return len(together) == 1 or encoded * codec.block_bytes < plain * 4 * BLOCK
