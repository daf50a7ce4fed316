"""Connections between two workers of a run, for what is no sum: both sides prove that they know the run's token.

    the one that dials                         the one that listens
    (TLS, if the run has certificates: each shows one of the run's authority)
                                       <--     random bytes
    random bytes, its proof            -->
                                       <--     its proof

A proof is HMAC-SHA-256(token, side, both random numbers), as on the data plane (byteps_build/sources/token_proof.h):
the token does not travel, and a recorded proof is worth nothing. A stranger holds a thread for `_PATIENCE_S` at most.
"""

from __future__ import annotations

import hmac
import os
import queue
import secrets
import socket
import ssl
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from dynamix_ps.addresses import host_port, split_host_port
from dynamix_ps.certificates import CERTIFICATE, KEY, Certificates
from dynamix_ps.errors import PeerLostError

_PATIENCE_S = 5.0  # for the proof of the other side
_SILENCE_S = 30.0  # afterwards: without a byte from it, or to it
_RANDOM_BYTES = _PROOF_BYTES = 32
_MOST_STRANGERS = 16  # at once; more are turned away, and dial again
_AGAIN_S = 0.1


class PeerListener:
    """Takes connections of other workers, from the beginning on, in threads of its own. A forked child has none of it.

    Attributes:
        address: host:port, under which the others reach it.
    """

    def __init__(self, host: str, token: str, certificates: Certificates | None = None) -> None:
        """`host`: an address of this machine that the others reach. Raises OSError where nothing can listen there."""
        family, kind, protocol, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self._socket = socket.socket(family, kind, protocol)
        self._socket.bind(place)
        self._socket.listen(_MOST_STRANGERS)
        self.address = host_port(host, self._socket.getsockname()[1])
        self._token = token
        self._context = None if certificates is None else _context(certificates, ssl.PROTOCOL_TLS_SERVER)
        self._room = threading.Semaphore(_MOST_STRANGERS)
        self._connected: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        os.register_at_fork(after_in_child=self._socket.close)
        threading.Thread(target=self._listen, name="dynamix-peers", daemon=True).start()

    def next(self, timeout_s: float) -> socket.socket | None:
        """The next connection of a worker of this run; None: there is none within `timeout_s`."""
        try:
            return self._connected.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Take no more connections."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except ConnectionError:
                continue  # it went away before it was taken
            except OSError:
                return
            if self._room.acquire(blocking=False):
                threading.Thread(target=self._greet, args=(connection,), name="dynamix-peer", daemon=True).start()
            else:
                connection.close()

    def _greet(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_PATIENCE_S)
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
            challenge = secrets.token_bytes(_RANDOM_BYTES)
            connection.sendall(challenge)
            told = received(connection, _RANDOM_BYTES + _PROOF_BYTES)
            both = challenge + told[:_RANDOM_BYTES]
            if not hmac.compare_digest(told[_RANDOM_BYTES:], _proof(self._token, "dialling", both)):
                connection.close()
                return
            connection.sendall(_proof(self._token, "listening", both))
        except (OSError, EOFError):  # a stranger, or gone
            connection.close()
        else:
            connection.settimeout(_SILENCE_S)
            self._connected.put(connection)
        finally:
            self._room.release()


def dial(address: str, token: str, certificates: Certificates | None = None, within_s: float = 30.0) -> socket.socket:
    """A connection to the worker that listens at host:port. Tries again for `within_s`.

    Raises PeerLostError where nothing listens that belongs to this run.
    """
    host, port = split_host_port(address)
    context = None if certificates is None else _context(certificates, ssl.PROTOCOL_TLS_CLIENT)
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            return _dialled(host, int(port), token, context)
        except (OSError, EOFError) as error:
            if time.monotonic() > deadline_s:
                why = error.strerror if isinstance(error, OSError) and error.strerror else error or "it hangs up"
                raise PeerLostError(f"no worker of this run answers at {address}: {why}") from error
        time.sleep(_AGAIN_S)


def received(connection: socket.socket, size: int) -> bytes:
    """So many bytes. Raises OSError or EOFError if the other side is gone before."""
    got = bytearray(size)
    fill(connection, memoryview(got))
    return bytes(got)


def fill(connection: socket.socket, place: memoryview) -> None:
    """Receive as many bytes as there is room. Raises OSError or EOFError if the other side is gone before."""
    while len(place):
        count = connection.recv_into(place)
        if not count:
            raise EOFError("the other side has closed the connection")
        place = place[count:]


def _dialled(host: str, port: int, token: str, context: ssl.SSLContext | None) -> socket.socket:
    connection = socket.create_connection((host, port), _PATIENCE_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            connection = context.wrap_socket(connection, server_hostname=host)
        own = secrets.token_bytes(_RANDOM_BYTES)
        both = received(connection, _RANDOM_BYTES) + own
        connection.sendall(own + _proof(token, "dialling", both))
        if not hmac.compare_digest(received(connection, _PROOF_BYTES), _proof(token, "listening", both)):
            raise ConnectionRefusedError("what listens there does not know the token of this run")
    except BaseException:
        connection.close()
        raise
    connection.settimeout(_SILENCE_S)
    return connection


def _proof(token: str, side: str, both: bytes) -> bytes:
    return hmac.digest(token.encode(), f"dynamix peers 1, {side}\n".encode() + both, "sha256")


def _context(certificates: Certificates, protocol: ssl._SSLMethod) -> ssl.SSLContext:
    """Both sides must show a certificate of the authority."""
    context = ssl.SSLContext(protocol)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificates.authority)
    with tempfile.TemporaryDirectory() as scratch:  # they can be loaded from files alone
        folder = Path(scratch, "own")
        certificates.save(folder)
        context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    return context
