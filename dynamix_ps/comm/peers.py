"""Connections between two workers of a run, for what is no sum: both sides prove that they know the run's token.

    dials                                      listens
    (TLS, if the run has certificates: each shows one of the run's authority)
                                       <--     random bytes
    random bytes, its proof            -->
                                       <--     its proof

token_proof.py has the proofs. A stranger holds a thread for `_PATIENCE_S` at most, and for less where many connect: the
oldest unproven connection makes room.
"""

from __future__ import annotations

import os
import queue
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
from dynamix_ps.token_proof import PROOF_BYTES, RANDOM_BYTES, is_proven, proof, random_number

_PATIENCE_S = 5.0  # for the proof of the other side
_SILENCE_S = 30.0  # afterwards: without a byte from it, or to it
_PROTOCOL = "peers 1"
_MOST_STRANGERS = 64  # at once
_AGAIN_S = 0.1


class PeerListener:
    """Accepts connections of other workers from the beginning on, in threads of its own. A forked child has none.

    Attributes:
        address: host:port, under which the others reach this listener.
    """

    def __init__(self, host: str, token: str, certificates: Certificates | None = None) -> None:
        """`host`: an address of this machine that the others reach. Raises OSError if it cannot be listened on."""
        family, kind, protocol, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self._socket = socket.socket(family, kind, protocol)
        self._socket.bind(place)
        self._socket.listen(_MOST_STRANGERS)
        self.address = host_port(host, self._socket.getsockname()[1])
        self._token = token
        self._context = None if certificates is None else _context(certificates, ssl.PROTOCOL_TLS_SERVER)
        self._mu = threading.Lock()
        self._strangers: dict[socket.socket, None] = {}  # those without a proof yet, in the order in which they came
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
        """Accept no more connections."""
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
            try:
                connection.settimeout(_PATIENCE_S)
                if self._context is not None:
                    connection = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            except OSError:
                connection.close()
                continue
            self._make_room_for(connection)
            threading.Thread(target=self._greet, args=(connection,), name="dynamix-peer", daemon=True).start()

    def _make_room_for(self, stranger: socket.socket) -> None:
        with self._mu:
            if len(self._strangers) >= _MOST_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                with suppress(OSError):  # it is gone already
                    socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # its thread sees the end, with TLS too
            self._strangers[stranger] = None

    def _is_stranger_no_more(self, connection: socket.socket) -> bool:
        """Note that a connection has proven itself. False: it had to make room before."""
        with self._mu:
            return self._strangers.pop(connection, connection) is None

    def _greet(self, connection: socket.socket) -> None:
        try:
            if isinstance(connection, ssl.SSLSocket):
                connection.do_handshake()
            challenge = random_number()
            connection.sendall(challenge)
            told = received(connection, RANDOM_BYTES + PROOF_BYTES)
            both = challenge + told[:RANDOM_BYTES]
            proven = is_proven(told[RANDOM_BYTES:], proof(self._token, _PROTOCOL, "dialling", both))
            if proven and self._is_stranger_no_more(connection):
                connection.sendall(proof(self._token, _PROTOCOL, "listening", both))
                connection.settimeout(_SILENCE_S)
                self._connected.put(connection)
                return
        except (OSError, EOFError):  # a stranger, or gone
            pass
        self._is_stranger_no_more(connection)
        connection.close()


def dial(address: str, token: str, certificates: Certificates | None = None, within_s: float = 30.0) -> socket.socket:
    """A connection to the worker that listens at host:port. Tries again for `within_s`.

    Raises PeerLostError where no worker of this run listens.
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
    got = bytearray()
    while len(got) < size:
        if not (part := connection.recv(size - len(got))):
            raise EOFError("the other side has closed the connection")
        got += part
    return bytes(got)


def _dialled(host: str, port: int, token: str, context: ssl.SSLContext | None) -> socket.socket:
    connection = socket.create_connection((host, port), _PATIENCE_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            connection = context.wrap_socket(connection, server_hostname=host)
        own = random_number()
        both = received(connection, RANDOM_BYTES) + own
        connection.sendall(own + proof(token, _PROTOCOL, "dialling", both))
        if not is_proven(received(connection, PROOF_BYTES), proof(token, _PROTOCOL, "listening", both)):
            raise ConnectionRefusedError("what listens there does not know the token of this run")
    except BaseException:
        connection.close()
        raise
    connection.settimeout(_SILENCE_S)
    return connection


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
