"""The C functions of our BytePS that make the sums of `Comm` (byteps_build/sources/exchange.cc), with types.

The functions take addresses of memory, so they serve every framework. None of them holds the GIL.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int32, c_uint32, c_uint64, c_void_p

import numpy as np
from numpy.typing import NDArray

TYPES = {  # the numbers that BytePS gives to types of values
    np.dtype(np.float32): 0,
    np.dtype(np.float64): 1,
    np.dtype(np.float16): 2,
    np.dtype(np.uint8): 3,
    np.dtype(np.int32): 4,
    np.dtype(np.int8): 5,
    np.dtype(np.int64): 6,
}
WIRES = {"bf16": 100, "int8": 101}  # the numbers of the codecs, see byteps_build/sources/wire.h
SHORTER = {"bf16": 2, "int8": 4}  # about how many times
_HOSTS_BYTES = 1 << 20  # room for the names of all servers' hosts
_MOST_SERVERS = 4096
_LOOK_S = 0.1  # so often a worker that waits for sums sees whether a server is lost
_SIGNATURES = {
    "start": (None, (c_int,)),
    "hosts": (c_int, (c_char_p, c_int)),
    "spread": (None, (c_void_p, c_uint64)),
    "place": (None, (c_uint32, c_uint64, c_uint64, c_uint32)),
    "window": (None, (c_uint64,)),
    "encode": (None, (c_uint32, c_uint64, c_int)),
    "refer": (None, (c_void_p, c_uint64, c_int, c_uint64, c_void_p, c_int)),
    "share": (None, (c_void_p, c_void_p, c_int, c_int, c_uint64, c_int)),
    "unshare": (None, (c_void_p,)),
    "push_pull": (None, (c_uint32, c_void_p, c_uint64, c_int, c_uint64)),
    "push_pull_into": (None, (c_uint32, c_void_p, c_void_p, c_uint64, c_int, c_uint64)),
    "freeze": (None, ()),
    "status": (c_int, (POINTER(c_uint64), POINTER(c_uint32), POINTER(c_uint64), c_int)),
    "unanswered": (c_int, (c_void_p, c_int)),
    "resume": (c_int, (c_uint64, c_uint64, c_int, c_void_p, c_uint64)),
    "expect": (None, (c_int,)),
    "enter": (None, (c_uint64, c_uint64, c_int)),
    "next_loss": (c_int, (c_double, POINTER(c_int))),
    "wait": (c_int, (c_uint32, c_double)),
    "echo": (c_double, (c_int, c_uint64, c_double)),
    "announce": (c_int, (c_int, c_uint64, c_char_p, c_int, c_double)),
    "forget": (None, (c_int, c_uint64)),
}


def _array(servers: NDArray[np.int32]) -> tuple[int, int]:
    """Address and length. The memory is in use until the call to which it goes returns."""
    return servers.ctypes.data, len(servers)


class Exchange:
    """Sums of memory over all workers. Buffers have numbers, the same on all workers."""

    def __init__(self, library: ctypes.CDLL, elastic: bool = False) -> None:
        """`library`: a plugin of BytePS that is initialised. `elastic`: workers may be lost, see elastic.py."""
        self._functions = {}
        self._first_loss: tuple[int, int] | None = None
        self._looked_s = 0.0  # when `first_loss` has asked the library
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, f"byteps_exchange_{name}")
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function
        self._functions["start"](elastic)
        self.push_pull = self._functions["push_pull"]  # (number, address, bytes, type, bytes at the beginning to skip)
        self.push_pull_into = self._functions["push_pull_into"]  # (number, address, address of the sum, and so on)
        self._wait = self._functions["wait"]

    def hosts(self) -> tuple[list[str], str]:
        """Address of each server's host, and of this worker's."""
        out = ctypes.create_string_buffer(_HOSTS_BYTES)
        self._functions["hosts"](out, _HOSTS_BYTES)
        *servers, own = out.value.decode().splitlines()
        return servers, own

    def spread(self, servers: NDArray[np.int32]) -> None:
        """Spread the pieces of buffers that are placed from now on, see `placement.servers_in_turn`.

        With `elastic`, this holds for all buffers that are pushed from now on.
        """
        self._functions["spread"](*_array(servers))

    def place(self, number: int, piece_bytes: int, pieces: int, priority: int) -> None:
        """Cut buffer `number` into pieces; the last one may be shorter. The lowest `priority` is sent first."""
        self._functions["place"](number, piece_bytes, pieces, priority)

    def limit_in_flight(self, size_bytes: int) -> None:
        """From now on, at most so many bytes, or one piece, are on their way to each server (sources/lane.h)."""
        self._functions["window"](size_bytes)

    def encode(self, number: int, size_bytes: int, wire: str) -> None:
        """Let so many bytes of float32 at the beginning of buffer `number` travel by a codec, with error feedback.

        Args:
            number: of a buffer that is cut into pieces. A piece that has other bytes too travels as it is.
            size_bytes: of the gradients.
            wire: one of `WIRES`, or `float32`: then all of the buffer travels as it is. The same on all workers.
        """
        coded_bytes, codec = (size_bytes, WIRES[wire]) if wire in WIRES else (0, WIRES["bf16"])
        self._functions["encode"](number, coded_bytes, codec)

    def refer(self, address: int, size_bytes: int, contributions: int, segment: int, servers: Sequence[int]) -> None:
        """A sum of this memory has so many contributions, one per host or worker.

        These servers map the segment of this memory: they read the values there, and none is sent to them.
        """
        array = (c_int32 * len(servers))(*servers)
        self._functions["refer"](address, size_bytes, contributions, segment, array, len(servers))

    def share(self, state: int, places: Sequence[int], mine: int, size_bytes: int, all_workers: bool) -> None:
        """Let the workers of this host sum the memory at `places` themselves, in the order of ranks.

        Args:
            state: memory that all of these workers map, zeros at first.
            mine: index of this worker's place.
            all_workers: the job has no other workers. Else one push stands for all of them, after a call of `refer`.
        """
        array = (c_void_p * len(places))(*places)
        self._functions["share"](state, array, len(places), mine, size_bytes, all_workers)

    def unshare(self, address: int) -> None:
        """Stop sharing this memory."""
        self._functions["unshare"](address)

    def wait(self, number: int, timeout_s: float) -> bool:
        """Whether the sum of buffer `number` is complete within `timeout_s`. Among sharing workers, this call sums."""
        return bool(self._wait(number, timeout_s))

    def freeze(self) -> None:
        """Let no round complete from now on. Needs `elastic`, like the two below."""
        self._functions["freeze"]()

    def status(self) -> tuple[int, dict[int, int]]:
        """The first incomplete round, and for its buffers with an incomplete sum the number of missing pieces."""
        room = 64
        while True:
            number, buffers, pieces = c_uint64(), (c_uint32 * room)(), (c_uint64 * room)()
            count = int(self._functions["status"](byref(number), buffers, pieces, room))
            if count <= room:
                return number.value, dict(zip(buffers[:count], pieces[:count], strict=True))
            room = count

    def unanswered(self) -> frozenset[int]:
        """Servers that have pieces of the first incomplete round and have not answered. Needs `elastic`."""
        servers = (c_int32 * _MOST_SERVERS)()
        return frozenset(servers[: int(self._functions["unanswered"](servers, _MOST_SERVERS))])

    def resume(self, generation: int, round_number: int, contributions: int, servers: NDArray[np.int32]) -> bool:
        """Go on with so many members, and with servers as in `spread`.

        Returns False if this worker is in another round, or has had this generation.
        """
        return bool(self._functions["resume"](generation, round_number, contributions, *_array(servers)))

    def expect(self, contributions: int) -> None:
        """From the next round on, sums have so many members. Between two rounds; needs `elastic`."""
        self._functions["expect"](contributions)

    def enter(self, generation: int, round_number: int, contributions: int) -> None:
        """Begin the first round of a joiner, of so many members. Before its first push; needs `elastic`."""
        self._functions["enter"](generation, round_number, contributions)

    def next_loss(self, timeout_s: float) -> tuple[int, int] | None:
        """Kind and rank of the next role whose connection has ended; None: there is none within `timeout_s`."""
        rank = c_int()
        kind = int(self._functions["next_loss"](timeout_s, byref(rank)))
        return None if kind < 0 else (kind, rank.value)

    def first_loss(self) -> tuple[int, int] | None:
        """As `next_loss`, which nobody else calls then, without waiting; the same every time.

        A loss may show only _LOOK_S after it: every wait for a sum asks.
        """
        now_s = time.monotonic()
        if self._first_loss is None and now_s >= self._looked_s + _LOOK_S:
            self._looked_s, self._first_loss = now_s, self.next_loss(0)
        return self._first_loss

    def echo_s(self, server: int, size_bytes: int, timeout_s: float) -> float:
        """Seconds that so many bytes take to a server and back; negative: more than `timeout_s`."""
        return float(self._functions["echo"](server, size_bytes, timeout_s))

    def announce(self, server: int, segment: int, announcement: bytes, timeout_s: float) -> bool:
        """Announce a segment to a server. Returns whether the server maps it from now on."""
        return bool(self._functions["announce"](server, segment, announcement, len(announcement), timeout_s))

    def forget(self, server: int, segment: int) -> None:
        """Let the server unmap the segment."""
        self._functions["forget"](server, segment)
