"""Whether hosts reach each other: each host listens, and the others connect and send for a while at full rate."""

from __future__ import annotations

import fcntl
import os
import select
import selectors
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial

from dynamix_ps.launch.messages.agent_messages import Reach, Reached
from dynamix_ps.launch.roles.ports import require_free

FREE_PORT = ""  # key of a port that the system picks
LIMIT_S = 3.0  # until a connection is there
_AT_ONCE = 256  # connections; a process may have some more files open
_BACKLOG = 1024
_READ_BYTES = 1 << 18
_SEND_BYTES = 1 << 18
_NO_LINGER = struct.pack("ii", 1, 0)  # close at once, and leave no trace at the port
_RTT_AT = 68  # offset of tcpi_rtt, in microseconds, in the kernel's struct tcp_info


class Listener:
    """Accepts connections, and reads and drops all bytes, while the caller drives the selector.

    The data of each of its keys is a function to call when the key is ready.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._sockets: set[socket.socket] = set()
        self._buffer = bytearray(_READ_BYTES)
        self.ports: dict[str, int] = {}  # on which it listens, by their keys

    def open(self, address: str, ports: Mapping[str, int]) -> None:
        """Listen on these ports and on a free one.

        Raises:
            EnvironmentNotReady: a port is taken.
            OSError: this process cannot listen there.
        """
        for key, port in {FREE_PORT: 0, **ports}.items():
            if port:
                require_free(address, port, key)
            family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
            listening = socket.socket(family, kind, protocol)
            self._watch(listening, partial(self._accept, listening))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(where)
            listening.listen(_BACKLOG)
            self.ports[key] = listening.getsockname()[1]

    def close(self) -> None:
        """Close all sockets. Idempotent."""
        for each in list(self._sockets):
            self._drop(each)
        self.ports = {}

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except OSError:
            return  # it is gone again
        self._watch(connection, partial(self._read, connection))

    def _read(self, connection: socket.socket) -> None:
        try:
            ended = connection.recv_into(self._buffer) == 0
        except BlockingIOError:
            return
        except OSError:
            ended = True
        if ended:
            self._drop(connection)

    def _watch(self, each: socket.socket, ready: Callable[[], None]) -> None:
        self._sockets.add(each)
        each.setblocking(False)
        self._selector.register(each, selectors.EVENT_READ, ready)

    def _drop(self, each: socket.socket) -> None:
        self._sockets.discard(each)
        self._selector.unregister(each)
        each.close()


def reached(wanted: Reach) -> Reached:
    """Connect to all ports at once, and send to each in turn. Takes up to LIMIT_S, and `rate_s` per port."""
    targets = list(zip(wanted.addresses, wanted.ports, strict=True))
    found: list[_Way] = []
    for start in range(0, len(targets), _AT_ONCE):
        found += _reach(targets[start : start + _AT_ONCE], wanted.rate_s)
    return Reached(
        problems=tuple(way.problem for way in found),
        round_trips_s=tuple(way.round_trip_s for way in found),
        bytes_per_s=tuple(way.bytes_per_s for way in found),
    )


class _Way:
    """The result for one port."""

    def __init__(self) -> None:
        self.problem = f"no answer within {LIMIT_S:g} s"
        self.round_trip_s = self.bytes_per_s = 0.0

    def take(self, connection: socket.socket, rate_s: float) -> None:
        """`connection`: whose attempt has ended. Raises OSError if it has failed, or fails while it is measured."""
        if number := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(number, os.strerror(number))
        self.problem = ""
        self.round_trip_s = _round_trip_s(connection)
        if rate_s:
            self.bytes_per_s = _rate(connection, rate_s)


def _reach(targets: Sequence[tuple[str, int]], rate_s: float) -> list[_Way]:
    ways = [_Way() for _ in targets]
    deadline_s = time.monotonic() + LIMIT_S
    with ExitStack() as opened, selectors.DefaultSelector() as waiting:
        for way, (address, port) in zip(ways, targets, strict=True):
            try:
                waiting.register(_begin(address, port, opened), selectors.EVENT_WRITE, way)
            except OSError as error:
                way.problem = error.strerror or str(error)
        while waiting.get_map() and (left_s := deadline_s - time.monotonic()) > 0:
            for key, _ in waiting.select(left_s):
                waiting.unregister(key.fileobj)
                assert isinstance(key.fileobj, socket.socket)
                try:
                    key.data.take(key.fileobj, rate_s)
                except OSError as error:
                    key.data.problem = error.strerror or str(error)
    return ways


def _begin(address: str, port: int, opened: ExitStack) -> socket.socket:
    """Begin to connect. Raises OSError."""
    family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    connection = opened.enter_context(socket.socket(family, kind, protocol))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    connection.setblocking(False)
    with suppress(BlockingIOError):
        connection.connect(where)
    return connection


def _round_trip_s(connection: socket.socket) -> float:
    """The round trip that the kernel has measured for a new connection."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_AT + 4)
    return int.from_bytes(info[_RTT_AT:], sys.byteorder) / 1e6


def _rate(connection: socket.socket, duration_s: float) -> float:
    """Acknowledged bytes per second, in the second half of the measurement. Raises OSError."""
    block, sent = bytes(_SEND_BYTES), 0
    writable = select.poll()
    writable.register(connection, select.POLLOUT)
    marks: list[tuple[float, int]] = []  # (time, bytes acknowledged) after half of the time, and at its end
    began_s = time.monotonic()
    while len(marks) < 2:
        writable.poll(5)
        with suppress(BlockingIOError):
            sent += connection.send(block)
        now_s = time.monotonic()
        if now_s - began_s >= duration_s * (len(marks) + 1) / 2:
            marks.append((now_s, sent - _unacknowledged(connection)))
    (half_s, before), (end_s, after) = marks
    return (after - before) / (end_s - half_s)


def _unacknowledged(connection: socket.socket) -> int:
    """Bytes that the kernel has taken and the other end has not acknowledged."""
    count = fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(count, sys.byteorder)
