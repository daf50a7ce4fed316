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

import io
import json
import logging
import queue
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from enum import IntEnum
from typing import Any, BinaryIO

import numpy as np

from dynamix_ps.comm.peers import fill
from dynamix_ps.comm.state_stream import send_state
from dynamix_ps.errors import PeerLostError, TrainingError

logger = logging.getLogger("dynamix")
_HEADER = struct.Struct(">BQQ")  # kind, number of the buffer, bytes that follow
_TAKEN = b"."
_AT_MOST_BEHIND = 1  # notes
_LOOK_S, _SHORTEST_WAIT_S = 1.0, 0.01  # so often a wait lets signals in


class _Kind(IntEnum):
    SUM = 0
    NOTE = 1
    ENTRY = 2


class SumGiver:
    """Gives one joiner the sums, in a thread beside training.

    Args:
        name: name of the joiner.
        connect: makes the connection; raises PeerLostError.
        beginning: functions that write what comes before the sums, in this order.
        most_bytes: how many bytes of sums the leader keeps that the joiner has not taken.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], socket.socket],
        beginning: Sequence[Callable[[BinaryIO], object]],
        most_bytes: int,
    ) -> None:
        self._name, self._connect, self._beginning, self._most_bytes = name, connect, list(beginning), most_bytes
        self._pieces: queue.SimpleQueue[tuple[bytes, bytes | memoryview] | None] = queue.SimpleQueue()
        self._mu = threading.Lock()
        self._kept_bytes = self._notes = self._taken = 0
        self._is_ready = False  # it need not catch up any more
        self.is_over = False  # the newcomer is gone
        threading.Thread(target=self._give, name="dynamix-following", daemon=True).start()

    @property
    def is_ready(self) -> bool:
        """Whether the joiner may enter: it has caught up, or never will. Once true, this stays true."""
        with self._mu:
            return self._is_ready or self.is_over

    def sum(self, number: int, values: memoryview) -> None:
        """Take a copy of the complete sum of buffer `number`."""
        if not self.is_over:
            self._put(_Kind.SUM, number, np.array(values).data)  # in huge pages, where it is large

    def note(self, note: Mapping[str, Any]) -> None:
        """Send what all workers know after the last sum of gradients, in JSON's types."""
        with self._mu:
            self._notes += 1
        self._put(_Kind.NOTE, 0, json.dumps(note).encode())

    def enter(self, write: Callable[[BinaryIO], object]) -> None:
        """The joiner takes part in the next sum. `write` writes what the joiner needs to know."""
        told = io.BytesIO()
        write(told)
        self._put(_Kind.ENTRY, 0, told.getvalue())
        self.close()

    def close(self) -> None:
        """End the stream; everything given before still arrives."""
        self._pieces.put(None)

    def _put(self, kind: _Kind, number: int, piece: bytes | memoryview) -> None:
        with self._mu:
            self._kept_bytes += len(piece)
            too_late = self._kept_bytes > self._most_bytes and not (self._is_ready or self.is_over)
            self._is_ready |= too_late
        if too_late:
            logger.warning(
                "%s does not catch up: %d bytes of sums are kept for it. It enters now, and the others wait for it",
                *(self._name, self._kept_bytes),
            )
        if not self.is_over:
            self._pieces.put((_HEADER.pack(kind, number, len(piece)), piece))

    def _give(self) -> None:
        try:
            with closing(self._connect()) as connection:
                while self._beginning:  # each is free when it is sent
                    send_state(connection, self._beginning.pop(0))
                connection.settimeout(None)  # what it does before its first sum may take long
                while (piece := self._pieces.get()) is not None:
                    self._hear(connection)
                    for part in piece:
                        connection.sendall(part)
                    with self._mu:
                        self._kept_bytes -= len(piece[1])
                with suppress(OSError):
                    while connection.recv(1024):  # until the newcomer has it all
                        pass
        except (PeerLostError, OSError) as error:
            logger.warning("%s follows no more: %s", self._name, error)
            with self._mu:
                self.is_over = True
            self._beginning.clear()
            with suppress(queue.Empty):
                while True:
                    self._pieces.get_nowait()

    def _hear(self, connection: socket.socket) -> None:
        """See how far the joiner is, without waiting."""
        patience_s = connection.gettimeout()
        connection.settimeout(0.0)
        try:
            while told := connection.recv(1024):
                with self._mu:
                    self._taken += len(told)
                    self._is_ready |= self._notes - self._taken <= _AT_MOST_BEHIND
            raise ConnectionResetError("it has closed the connection")
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        finally:
            connection.settimeout(patience_s)


class SumTaker:
    """Takes the sums on the side of the joiner.

    Its methods raise PeerLostError if the leader is gone, and TrainingError if the sums of the others do not match.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._header = bytearray()

    def sum(self, number: int, place: memoryview, timeout_s: float) -> bool:
        """Put the next sum, of buffer `number`, into its place. False: no sum has come within `timeout_s`."""
        if not self._has_header(timeout_s):
            return False
        self._fill(_Kind.SUM, number, place)
        return True

    def note(self) -> dict[str, Any]:
        """The note after a sum of gradients."""
        note: dict[str, Any] = json.loads(self._whole(_Kind.NOTE))
        try:
            self._connection.sendall(_TAKEN)
        except OSError as error:
            raise _lost(error) from error
        return note

    def entry(self) -> BinaryIO:
        """The last message, which comes when this worker takes part in the next sum."""
        told = io.BytesIO(self._whole(_Kind.ENTRY))
        self._connection.close()
        return told

    def _whole(self, kind: _Kind) -> bytes:
        while not self._has_header(_LOOK_S):
            pass
        piece = bytearray(_HEADER.unpack(self._header)[2])
        self._fill(kind, 0, memoryview(piece))
        return bytes(piece)

    def _has_header(self, timeout_s: float) -> bool:
        patience_s = self._connection.gettimeout()
        self._connection.settimeout(max(timeout_s, _SHORTEST_WAIT_S))
        try:
            while len(self._header) < _HEADER.size:
                if not (told := self._connection.recv(_HEADER.size - len(self._header))):
                    raise EOFError("it has closed the connection")
                self._header += told
        except TimeoutError:
            return False
        except (OSError, EOFError) as error:
            raise _lost(error) from error
        finally:
            self._connection.settimeout(patience_s)
        return True

    def _fill(self, kind: _Kind, number: int, place: memoryview) -> None:
        if (found := _HEADER.unpack(self._header)) != (kind, number, len(place)):
            raise TrainingError(
                "this worker follows the others until it enters, and does not do what they do: they come to "
                f"{_named(*found)}, it comes to {_named(kind, number, len(place))}; the script must make the same "
                "calls on every worker, also after a late start"
            )
        self._header.clear()
        try:
            fill(self._connection, place)
        except (OSError, EOFError) as error:
            raise _lost(error) from error


def _named(kind: int, number: int, size_bytes: int) -> str:
    return f"a sum of {size_bytes} bytes (number {number})" if kind == _Kind.SUM else f"its {_Kind(kind).name.lower()}"


def _lost(error: BaseException) -> PeerLostError:
    return PeerLostError(f"the worker whose sums this one follows is gone ({error}); it must be started again")
