"""What a worker sends to another one that enters, over a file of their connection: pieces, and the state of training.

A piece begins with what it is, and with its length. A state has neither: who reads it knows where it ends. Large pieces
and states go directly from memory to memory. The connection may break, so the receiver uses no part of a state before
it has all of it.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

from dynamix_ps.errors import PeerLostError, TrainingError

_HEADER = struct.Struct(">qQ")  # number of a sum, or what else it is; bytes that follow
NO_SUM, NOTE = -1, -2  # a note follows the sum of gradients


def write_piece(out: BinaryIO, number: int, piece: bytes | memoryview) -> None:
    """Write the sum with this number, a note, or what is neither."""
    out.write(_HEADER.pack(number, len(piece)))
    out.write(piece)


def read_piece(stream: BinaryIO, number: int = NO_SUM) -> bytearray:
    """The next piece, which is no sum. Raises as `begin_piece`."""
    piece = bytearray(begin_piece(stream, number))
    fill(stream, memoryview(piece))
    return piece


def begin_piece(stream: BinaryIO, number: int, size_bytes: int | None = None) -> int:
    """Read what the next piece is: of this number and, if there is one, of this size. Returns its size.

    Raises:
        TrainingError: it is another one.
        PeerLostError: the connection breaks off.
    """
    header = bytearray(_HEADER.size)
    fill(stream, memoryview(header))
    found = _HEADER.unpack(header)
    if found != (number, found[1] if size_bytes is None else size_bytes):
        raise TrainingError(
            "this worker follows the others until it enters, and does not do what they do: they come to "
            f"{_named(*found)}, it comes to {_named(number, size_bytes)}; the script must make the same calls on every "
            "worker, also after a late start"
        )
    return found[1]


def _named(number: int, size_bytes: int | None) -> str:
    others = {NO_SUM: "the iteration with which this worker enters", NOTE: "the end of an iteration"}
    return others.get(number, f"a sum of {size_bytes} bytes (number {number})")


def fill(stream: BinaryIO, place: memoryview) -> None:
    """Fill the memory with the next bytes. Raises PeerLostError if the connection breaks off."""
    try:
        while len(place):
            count = stream.readinto(place)  # type: ignore[attr-defined]  # typeshed's BinaryIO lacks it
            if not count:
                raise EOFError(f"the connection ends {len(place)} bytes too early")
            place = place[count:]
    except (OSError, EOFError) as error:
        raise PeerLostError(
            f"the worker that gives this one the state of the training and the sums after it is gone: {error}; this "
            "worker must be started again"
        ) from error
