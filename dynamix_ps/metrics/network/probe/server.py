"""The probe's server: many clients in one thread, isolated from each other.

The kernel tells who asks (SO_PEERCRED), so every client sees only the connections of its own user. The server drops a
client that misbehaves; other clients are not affected.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Protocol

from dynamix_ps.metrics.network.connection import Connection, SourceError
from dynamix_ps.metrics.network.probe.owner import Namespaces, read_owner
from dynamix_ps.metrics.network.probe.protocol import (
    MAX_REQUEST_BYTES,
    ProbeSnapshot,
    WatchedProcess,
    decode_request,
    encode_error,
    encode_snapshot,
)
from dynamix_ps.open_files import raise_open_files

MAX_CLIENTS = 1024
MAX_CLIENTS_PER_USER = 400
MAX_REQUESTS_PER_S = 500  # of one client
PATIENCE_S = 5.0  # for the rest of a request, and for a client to read its reply
SWEEP_S = 1.0
_FILES_PER_CLIENT = 2
_SPARE_FILES = 128  # for everything but clients
_PEER = struct.Struct("iII")  # struct ucred: pid, uid, gid


class ConnectionCollector(Protocol):
    """What the probe uses of an EbpfCollector."""

    def watch(self, pid: int) -> None: ...

    def unwatch(self, pid: int) -> None: ...

    def read(self, pid: int = 0) -> tuple[Connection, ...]: ...

    @property
    def lost(self) -> int: ...

    def close(self) -> None: ...


@dataclass(eq=False, slots=True)
class _Client:
    """A connected process."""

    socket: socket.socket
    process: WatchedProcess
    uid: int
    life: int  # a pidfd, readable once the process has ended and its number may be reused
    received: bytearray = field(default_factory=bytearray)
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    since_s: float = 0.0  # time of the first byte of an incomplete request or reply
    requests: int = 0  # since the last sweep

    @property
    def pid(self) -> int:
        return self.process.pid


class _Misbehaved(Exception):
    """The client must be dropped; the text says why."""


class Probe:
    """Serves a collector on a socket. `serve` runs until `stop`; `close` releases everything."""

    def __init__(
        self, collector: ConnectionCollector, listening: socket.socket, clock: Callable[[], float] = time.monotonic
    ):
        self._collector, self._listening, self._clock = collector, listening, clock
        self._host = socket.gethostname()
        self._namespaces = Namespaces()
        self._clients: set[_Client] = set()
        self._watched: Counter[int] = Counter()  # clients by pid
        self._swept_s = self._logged_s = clock()
        self._stopping = False
        self._wake, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ, None)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._room = _room_for_clients()

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Make `serve` return. May be called by another thread or as a signal handler."""
        self._stopping = True
        with contextlib.suppress(OSError):  # `serve` is ending already
            self._waker.send(b"x")

    def serve(self) -> None:
        """Answer until `stop`. Each round handles at most one request per client, so no client starves the others."""
        while not self._stopping:
            events = self._selector.select(SWEEP_S if self._clients else None)
            for key, mask in events:
                if key.fileobj is self._listening:
                    self._accept()
                elif key.data in self._clients:  # not dropped in this round
                    if key.fd == key.data.life:
                        self._drop(key.data)
                    else:
                        self._advance(key.data, mask)
            self._sweep()

    def close(self) -> None:
        for client in tuple(self._clients):
            self._drop(client)
        self._selector.close()
        self._wake.close()
        self._waker.close()
        self._collector.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return  # the client has given up
        connection.setblocking(False)
        try:
            client = self._new_client(connection)
        except (_Misbehaved, SourceError) as error:
            self._log(f"refused: {error}")
            with contextlib.suppress(OSError):  # the client has ended
                connection.send(encode_error(f"{error}"))
            connection.close()
            return
        self._watched[client.pid] += 1
        self._clients.add(client)
        for readable in (connection, client.life):
            self._selector.register(readable, selectors.EVENT_READ, client)

    def _new_client(self, connection: socket.socket) -> _Client:
        pid, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if pid <= 0:
            raise _Misbehaved("this process is in a pid namespace that the probe cannot see")
        if len(self._clients) >= self._room:
            raise _Misbehaved(f"the probe serves {self._room} clients already")
        if sum(client.uid == uid for client in self._clients) >= MAX_CLIENTS_PER_USER:
            raise _Misbehaved(f"the probe serves {MAX_CLIENTS_PER_USER} clients of user {uid} already")
        try:
            life = os.pidfd_open(pid)
        except ProcessLookupError:
            raise _Misbehaved(f"process {pid} has ended") from None
        try:
            if not self._watched[pid]:
                self._collector.watch(pid)
        except SourceError:
            os.close(life)
            raise
        return _Client(connection, read_owner(pid, uid, self._namespaces), uid, life)

    def _advance(self, client: _Client, mask: int) -> None:
        """Serve one client: read its request, or send the rest of its reply."""
        try:
            if mask & selectors.EVENT_READ and not self._receive(client):
                self._drop(client)
                return
            if not client.unsent and b"\n" in client.received:
                self._answer(client)
            self._send(client)
        except _Misbehaved as error:
            self._log(f"dropped process {client.pid} of user {client.uid}: {error}")
            self._drop(client)
        except OSError:
            self._drop(client)  # the client has ended
        else:
            wanted = selectors.EVENT_WRITE if client.unsent else selectors.EVENT_READ
            self._selector.modify(client.socket, wanted, client)

    def _receive(self, client: _Client) -> bool:
        """Read a request; False if the client has closed. A second line before the reply is misbehaviour."""
        try:
            data = client.socket.recv(MAX_REQUEST_BYTES + 1)
        except BlockingIOError:
            return True
        if not client.received:
            client.since_s = self._clock()
        client.received += data
        if len(client.received) > MAX_REQUEST_BYTES:
            raise _Misbehaved(f"a request of more than {MAX_REQUEST_BYTES} bytes")
        if b"\n" in client.received[:-1]:
            raise _Misbehaved("a request before it had the reply to the last one")
        return bool(data)

    def _answer(self, client: _Client) -> None:
        client.requests += 1
        if client.requests > MAX_REQUESTS_PER_S:
            raise _Misbehaved(f"more than {MAX_REQUESTS_PER_S} requests in a second")
        line = bytes(client.received)
        client.received.clear()
        try:
            ask = decode_request(line)
            reply = encode_snapshot(self._own(client) if ask == "mine" else self._all(client))
        except (ValueError, SourceError) as error:
            reply = encode_error(f"{error}")
        client.unsent, client.since_s = memoryview(reply), self._clock()

    def _own(self, client: _Client) -> ProbeSnapshot:
        """Raises SourceError if the collector cannot read."""
        return self._snapshot({client.pid: client.process}, self._collector.read(client.pid))

    def _all(self, client: _Client) -> ProbeSnapshot:
        """A user sees its own processes, root sees all. Raises SourceError like `_own`."""
        visible = {other.pid: other.process for other in self._clients if client.uid in (0, other.uid)}
        return self._snapshot(visible, tuple(c for c in self._collector.read() if c.pid in visible))

    def _snapshot(self, processes: dict[int, WatchedProcess], connections: tuple[Connection, ...]) -> ProbeSnapshot:
        return ProbeSnapshot(
            host=self._host,
            taken_s=time.time(),
            lost=self._collector.lost,
            cpu_s=time.process_time(),
            processes=tuple(processes.values()),
            connections=connections,
        )

    def _send(self, client: _Client) -> None:
        if client.unsent:
            with contextlib.suppress(BlockingIOError):
                client.unsent = client.unsent[client.socket.send(client.unsent) :]

    def _sweep(self) -> None:
        """Once per SWEEP_S, drop clients that keep the probe waiting."""
        now_s = self._clock()
        if now_s - self._swept_s < SWEEP_S:
            return
        self._swept_s = now_s
        for client in tuple(self._clients):
            client.requests = 0
            if (client.received or client.unsent) and now_s - client.since_s > PATIENCE_S:
                what = "did not take its reply" if client.unsent else "did not complete its request"
                self._log(f"dropped process {client.pid} of user {client.uid}: {what} within {PATIENCE_S:g} s")
                self._drop(client)

    def _drop(self, client: _Client) -> None:
        self._clients.remove(client)
        self._selector.unregister(client.socket)
        self._selector.unregister(client.life)
        client.socket.close()
        os.close(client.life)
        self._watched[client.pid] -= 1
        if not self._watched[client.pid]:
            del self._watched[client.pid]
            self._collector.unwatch(client.pid)

    def _log(self, line: str) -> None:
        """Print at most one line per second, so that no client can fill a disk."""
        now_s = self._clock()
        if now_s - self._logged_s >= 1.0:
            self._logged_s = now_s
            print(line, flush=True)


def _room_for_clients() -> int:
    """Number of clients that the limit on open files allows, after raising the limit as far as permitted."""
    files = raise_open_files(_FILES_PER_CLIENT * MAX_CLIENTS + _SPARE_FILES)
    return max(1, min(MAX_CLIENTS, (files - _SPARE_FILES) // _FILES_PER_CLIENT))
