"""Asks the host's network probe for the connections of this process. Never waits longer than LIMIT_S in all."""

from __future__ import annotations

import contextlib
import os
import socket
import time

from dynamix_ps.metrics.network.connection import NetworkSource, Reading, SourceError, SourceName
from dynamix_ps.metrics.network.probe_protocol import MAX_REPLY_BYTES, Ask, Snapshot, decode_reply, encode_request

LIMIT_S = 0.5  # for connecting, asking and the whole reply
_READ_BYTES = 1 << 16


class ProbeSource(NetworkSource):
    """A connection to the probe, made at the first question; the probe watches this process until `close`.

    One thread at a time. A forked child does not touch its parent's connection: it makes its own.
    """

    name: SourceName = "ebpf"

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket: socket.socket | None = None
        self._pid = os.getpid()

    def read(self) -> Reading:
        """The connections of this process. Raises SourceError, see `ask`."""
        snapshot = self.ask("mine")
        return Reading(self.name, snapshot.taken_s, snapshot.connections, snapshot.lost)

    def ask(self, ask: Ask) -> Snapshot:
        """Ask the probe.

        Raises:
            SourceError: it is not there, does not answer in time, or answers something else. The connection is
                closed then, so that a late answer is never taken for that to a later question.
        """
        deadline_s = time.monotonic() + LIMIT_S
        try:
            return decode_reply(self._exchange(encode_request(ask), deadline_s))
        except SourceError as error:
            self.close()
            raise SourceError(f"network probe {self.path}: {error}") from error
        except TimeoutError as error:
            self.close()
            raise SourceError(f"network probe {self.path}: did not answer within {LIMIT_S:g} s") from error
        except OSError as error:
            self.close()
            raise SourceError(f"network probe {self.path}: {_explained(error)}") from error

    def close(self) -> None:
        """Let the probe forget this process. May be called twice, and `ask` again after it."""
        if self._socket is None:
            return
        if self._pid == os.getpid():
            with contextlib.suppress(OSError):  # the probe has gone first
                self._socket.shutdown(socket.SHUT_RDWR)  # it shall notice even while a forked child has a copy
        self._socket.close()
        self._socket = None

    def _exchange(self, request: bytes, deadline_s: float) -> bytes:
        if self._pid != os.getpid():
            self.close()
            self._pid = os.getpid()
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(_left_s(deadline_s))
            self._socket.connect(self.path)
        else:
            _expect_silence(self._socket)
        self._socket.settimeout(_left_s(deadline_s))
        with contextlib.suppress(BrokenPipeError):  # it does not listen, but may have said why
            self._socket.sendall(request)
        reply = bytearray()
        while b"\n" not in reply[-_READ_BYTES:]:
            if len(reply) > MAX_REPLY_BYTES:
                raise SourceError(f"sent a line of more than {MAX_REPLY_BYTES} bytes")
            self._socket.settimeout(_left_s(deadline_s))
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise SourceError(f"closed the connection {'inside a reply' if reply else 'without a reply'}")
            reply += data
        line, _, rest = bytes(reply).partition(b"\n")
        if rest:
            raise SourceError("sent more than one line for a reply")
        return line


def _explained(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such socket"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there any more"
    if isinstance(error, ConnectionResetError):
        return "closed the connection without a reply"
    if isinstance(error, BlockingIOError):
        return "takes no more connections"
    return error.strerror or str(error)


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _expect_silence(connection: socket.socket) -> None:
    """Nothing may lie there before a question is asked. Raises SourceError."""
    connection.settimeout(0)
    try:
        data = connection.recv(1)
    except BlockingIOError:
        return
    raise SourceError("spoke without being asked" if data else "ended, or dropped this process")
