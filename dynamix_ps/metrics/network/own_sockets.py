"""The TCP connections of this process; those opened while the data plane started belong to it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dynamix_ps.metrics.network.connection import Connection, endpoint

_ESTABLISHED, _CLOSE_WAIT = 1, 8  # first byte of struct tcp_info


@dataclass(frozen=True, slots=True)
class OwnSockets:
    """TCP sockets of this process at one moment."""

    listening: frozenset[int]  # ports
    connected: frozenset[tuple[str, str]]  # (local, remote)
    left: frozenset[tuple[str, str]] = frozenset()  # the same, of those that the other end has closed


def own_sockets() -> OwnSockets:
    """The sockets of this process. One that closes during the call is left out."""
    listening: set[int] = set()
    by_state: dict[int, set[tuple[str, str]]] = {_ESTABLISHED: set(), _CLOSE_WAIT: set()}
    for copy in _tcp_sockets():
        with contextlib.suppress(OSError):  # not connected
            if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                listening.add(copy.getsockname()[1])
            elif (state := copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]) in by_state:
                by_state[state].add((endpoint(*copy.getsockname()[:2]), endpoint(*copy.getpeername()[:2])))
    return OwnSockets(frozenset(listening), frozenset(by_state[_ESTABLISHED]), frozenset(by_state[_CLOSE_WAIT]))


def keep_alive(idle_s: int, every_s: int, probes: int) -> None:
    """Let the kernel close connections of this process whose other end is unreachable.

    When a connection is idle for `idle_s`, the kernel asks the other end every `every_s`, `probes` times.
    """
    for copy in _tcp_sockets():
        with contextlib.suppress(OSError):
            copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
            copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every_s)
            copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
            copy.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _tcp_sockets() -> Iterator[socket.socket]:
    """Copies of the TCP sockets of this process, each open until the next one."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed in the meantime
            continue
        with copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                yield copy


def opened_between(before: OwnSockets, after: OwnSockets) -> Callable[[Connection], bool]:
    """Selects connections opened in between, and later connections to ports opened in between."""
    ports = after.listening - before.listening
    connected = after.connected - before.connected

    def is_one(connection: Connection) -> bool:
        port = int(connection.local.rpartition(":")[2])
        return port in ports or (connection.local, connection.remote) in connected

    return is_one
