"""The state of a training on its way from one worker to another: a stream of parts, each with its length.

What writes a state, such as torch.save, goes through it once and never back, so the one that has it needs no copy: its
tensors are sent from where they are. The one that receives it has it whole before it uses any of it, because a stream
may break off.
"""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

from dynamix_ps.comm.peers import fill, received
from dynamix_ps.errors import PeerLostError

_LENGTH = struct.Struct(">I")  # of a part; 0: the state is complete
_PART_BYTES = 1 << 20  # of the longest part
_SMALL_BYTES = 1 << 16  # what is written in smaller pieces travels together


def send_state(connection: socket.socket, write: Callable[[BinaryIO], None]) -> None:
    """Send what `write` writes.

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
    """What the other side sends, to be read from its beginning.

    Raises PeerLostError if it does not come to its end.
    """
    state, part = io.BytesIO(), memoryview(bytearray(_PART_BYTES))
    try:
        while size := _LENGTH.unpack(received(connection, _LENGTH.size))[0]:
            if size > _PART_BYTES:
                raise EOFError(f"a part of {size} bytes, expected at most {_PART_BYTES}")
            fill(connection, part[:size])
            state.write(part[:size])
    except (OSError, EOFError) as error:
        raise PeerLostError(
            f"the state of the training broke off after {state.tell()} bytes, because the worker that sent it is gone: "
            f"{error}"
        ) from error
    state.seek(0)
    return state


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
