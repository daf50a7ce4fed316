"""Asks the host's network probe for the connections of this process. A request takes at most LIMIT_S."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time

from dynamix_ps.metrics.network.connection import NetworkSource, Reading, SourceError, SourceName
from dynamix_ps.metrics.network.probe.protocol import MAX_REPLY_BYTES, Ask, ProbeSnapshot, decode_reply, encode_request

LIMIT_S = 0.5  # for connecting, the request and the whole reply
_READ_BYTES = 1 << 16
_TIMEVAL = struct.Struct("ll")  # of C: seconds and microseconds


class ProbeSource(NetworkSource):
    """A connection to the probe, opened by the first request; the probe watches this process until `close`.

    Not thread safe. A forked child does not use its parent's connection; it opens its own.
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

    def ask(self, ask: Ask) -> ProbeSnapshot:
        """Ask the probe.

        Raises:
            SourceError: no probe is there, or it does not answer in time or not as expected. The connection is then
                closed, so that a late reply is never taken for the reply to a later request.
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
        """End the connection, so that the probe forgets this process. Idempotent; `ask` may follow."""
        if self._socket is None:
            return
        if self._pid == os.getpid():
            with contextlib.suppress(OSError):  # the probe has ended before
                self._socket.shutdown(socket.SHUT_RDWR)  # the probe notices even if a forked child has a copy
        self._socket.close()
        self._socket = None

    def _exchange(self, request: bytes, deadline_s: float) -> bytes:
        if self._pid != os.getpid():
            self.close()
            self._pid = os.getpid()
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            _connect(self._socket, self.path, _left_s(deadline_s))
        else:
            _expect_silence(self._socket)
        self._socket.settimeout(_left_s(deadline_s))
        with contextlib.suppress(BrokenPipeError):  # the probe no longer reads, but may have sent a reason
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


def _connect(connection: socket.socket, path: str, limit_s: float) -> None:
    """Connect within `limit_s`. The kernel lets a blocking socket wait while too many others want to connect; a socket
    with a timeout of Python would fail at once."""
    seconds, fraction_s = divmod(limit_s, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(seconds), int(fraction_s * 1e6)))
    connection.connect(path)


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
    """Check that nothing has arrived before a request. Raises SourceError."""
    connection.settimeout(0)
    try:
        data = connection.recv(1)
    except BlockingIOError:
        return
    raise SourceError("sent data without a request" if data else "ended, or dropped this process")
