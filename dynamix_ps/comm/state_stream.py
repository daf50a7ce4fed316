"""The state of a training on its way from one worker to another: a stream of parts, each with its length.

Writer and reader go through the state once and never back. Neither needs a copy: large pieces go directly from memory
to memory. The stream may break off, so the receiver uses no part of a state before it has all of it.
"""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

from dynamix_ps.comm.peers import received
from dynamix_ps.errors import PeerLostError

_LENGTH = struct.Struct(">I")  # of a part; 0: the state is complete
_PART_BYTES = 1 << 20  # of the longest part
_SMALL_BYTES = 1 << 16  # what is written in smaller pieces travels together


def send_state(connection: socket.socket, write: Callable[[BinaryIO], object]) -> None:
    """Send the state that `write` writes.

    Raises PeerLostError if the other side is gone.
    """
    parts = _Parts(connection)
    out = io.BufferedWriter(parts, _SMALL_BYTES)
    write(out)
    out.flush()
    parts.end()
    if parts.error is not None:
        why = parts.error
        raise PeerLostError(f"the worker that was to get the state of the training is gone: {why}") from why


def receive_state(connection: socket.socket) -> BinaryIO:
    """The state from the other side, a file to be read once from its beginning to its end.

    Its methods raise PeerLostError if the stream breaks off.
    """
    return io.BufferedReader(_Received(connection), _SMALL_BYTES)


def fill(state: BinaryIO, place: memoryview) -> None:
    """Fill the memory with bytes of a file from `receive_state`.

    Raises PeerLostError if the stream has too few.
    """
    while len(place):
        count = state.readinto(place)  # type: ignore[attr-defined]  # typeshed's BinaryIO lacks it
        if not count:
            raise PeerLostError(f"the state of the training ends {len(place)} bytes too early")
        place = place[count:]


class _Parts(io.RawIOBase):
    """Sends each piece that is written as parts. After an error nothing more goes out, and the writer does not notice:
    those of frameworks are not made for errors in their middle.
    """

    error: OSError | None = None

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        whole = memoryview(piece).cast("B")
        for begin in range(0, len(whole), _PART_BYTES):
            part = whole[begin : begin + _PART_BYTES]
            self._send(_LENGTH.pack(len(part)))
            self._send(part)
        return len(whole)

    def end(self) -> None:
        """The state is complete."""
        self._send(_LENGTH.pack(0))

    def _send(self, part: bytes | memoryview) -> None:
        if self.error is None:
            try:
                self._connection.sendall(part)
            except OSError as error:
                self.error = error


class _Received(io.RawIOBase):
    """Receives parts as one piece."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left_bytes = self._so_far_bytes = 0  # of the part at hand; in all
        self._complete = False

    def readable(self) -> bool:
        return True

    def readinto(self, place: Any) -> int:
        try:
            if not self._left_bytes and not self._complete:
                self._begin_part()
            if self._complete:
                return 0
            count = self._connection.recv_into(memoryview(place)[: self._left_bytes])
            if not count:
                raise EOFError("the other side has closed the connection")
        except (OSError, EOFError) as error:
            raise PeerLostError(
                f"the state of the training broke off after {self._so_far_bytes} bytes, because the worker that sent "
                f"it is gone: {error}"
            ) from error
        self._left_bytes -= count
        self._so_far_bytes += count
        return count

    def readall(self) -> bytes:
        whole, part = io.BytesIO(), memoryview(bytearray(_PART_BYTES))
        while count := self.readinto(part):
            whole.write(part[:count])
        return whole.getvalue()

    def _begin_part(self) -> None:
        self._left_bytes = _LENGTH.unpack(received(self._connection, _LENGTH.size))[0]
        self._complete = not self._left_bytes
        if self._left_bytes > _PART_BYTES:
            raise EOFError(f"a part of {self._left_bytes} bytes, expected at most {_PART_BYTES}")
