"""Gives a joiner the sums of a training, with which it has the state of the others when it enters.

    the leader                                       the joiner
    what all know, and the state, both copies   -->  restores them
    every sum from then on, in order            -->  takes it in place of one of its own
    behind each sum of gradients, a note        -->
                                                <--  a byte for each note
    what all know as it enters                  -->  is in the next sum

No worker waits for the joiner. The leader keeps the sums that the joiner has not taken yet in memory, up to a limit.
"""

from __future__ import annotations

import json
import logging
import queue
import select
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, BinaryIO, cast

import numpy as np

from dynamix_ps.comm.catching_up import CatchingUp
from dynamix_ps.comm.state_stream import NO_SUM, NOTE, begin_piece, fill, read_piece, write_piece
from dynamix_ps.errors import PeerLostError

logger = logging.getLogger("dynamix")
_TAKEN = b"."
_LOOK_S = 1.0  # so often a wait lets signals in


class SumGiver:
    """Gives one joiner the sums, in a thread beside training.

    Args:
        name: name of the joiner.
        begun: the connection, when the joiner has got what comes before the sums, and its file; raises PeerLostError.
        most_bytes: how many bytes of sums the leader keeps that the joiner has not taken.
    """

    def __init__(
        self, name: str, begun: AbstractContextManager[tuple[socket.socket, BinaryIO]], most_bytes: int
    ) -> None:
        self._name, self._begun = name, begun
        self._pieces: queue.SimpleQueue[tuple[int, bytes | memoryview] | None] = queue.SimpleQueue()
        self._joiner = CatchingUp(most_bytes)
        threading.Thread(target=self._give, name="dynamix-following", daemon=True).start()

    @property
    def is_ready(self) -> bool:
        """Whether the joiner may enter. Once true, this stays true."""
        return self._joiner.is_ready

    @property
    def is_over(self) -> bool:
        """Whether the joiner is gone."""
        return self._joiner.is_over

    def sum(self, number: int, values: memoryview) -> None:
        """Take a copy of the complete sum of buffer `number`."""
        if not self.is_over:
            self._put(number, np.array(values).data)  # in huge pages, where it is large

    def note(self, note: Mapping[str, Any]) -> None:
        """Send what all workers know after the last sum of gradients, in JSON's types."""
        self._joiner.note()
        self._put(NOTE, json.dumps(note).encode())

    def enter(self, told: bytes) -> None:
        """The joiner takes part in the next sum, and is told what it needs to know."""
        if self._joiner.is_too_late:
            logger.warning("%s does not catch up: it enters now, and the others wait for it", self._name)
        self._put(NO_SUM, told)
        self.close()

    def close(self) -> None:
        """End the stream; everything given before still arrives."""
        self._pieces.put(None)

    def _put(self, number: int, piece: bytes | memoryview) -> None:
        self._joiner.keep(len(piece))
        self._pieces.put((number, piece))

    def _give(self) -> None:
        try:
            with self._begun as (connection, out):
                connection.settimeout(None)  # what the joiner does before its first sum may take long
                while (piece := self._pieces.get()) is not None:
                    self._hear(connection)
                    write_piece(out, *piece)
                    out.flush()
                    self._joiner.sent(len(piece[1]))
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1024):  # until the joiner has it all
                        pass
                return
        except (PeerLostError, OSError) as error:
            logger.warning("%s follows no more: %s", self._name, error)
        self._joiner.end()
        while self._pieces.get() is not None:  # nothing is kept for it
            pass

    def _hear(self, connection: socket.socket) -> None:
        """See how far the joiner is, without waiting."""
        connection.setblocking(False)
        try:
            while told := connection.recv(1024):
                self._joiner.taken(len(told))
            raise ConnectionResetError("it has closed the connection")
        except (BlockingIOError, ssl.SSLWantReadError):
            connection.setblocking(True)


class SumTaker:
    """Takes what the leader gives, on the side of the joiner.

    Its methods raise PeerLostError if the leader is gone, and TrainingError if the sums of the others do not match.

    Attributes:
        stream: the file from which the state is read.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.stream = cast(BinaryIO, connection.makefile("rb", buffering=0))
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def sum(self, number: int, place: memoryview, timeout_s: float) -> bool:
        """Put the next sum, of buffer `number`, into its place. False: no sum has come within `timeout_s`."""
        if not self._comes(timeout_s):
            return False
        begin_piece(self.stream, number, len(place))
        fill(self.stream, place)
        return True

    def note(self) -> dict[str, Any]:
        """The note after a sum of gradients."""
        note: dict[str, Any] = json.loads(self.told(NOTE))
        with suppress(OSError):  # who is gone sends no more sums, which the next one shows
            self._connection.sendall(_TAKEN)
        return note

    def told(self, kind: int = NO_SUM) -> bytearray:
        """What all know, before the state and as this worker takes part in the next sum; or a note."""
        while not self._comes(_LOOK_S):
            pass
        return read_piece(self.stream, kind)

    def close(self) -> None:
        """Take no more."""
        self.stream.close()
        self._connection.close()

    def _comes(self, timeout_s: float) -> bool:
        """Whether something comes within `timeout_s`."""
        held = isinstance(self._connection, ssl.SSLSocket) and self._connection.pending()
        return bool(held or self._poll.poll(timeout_s * 1000))
