"""Connections of watched processes from the kernel, by eBPF programs on raw tracepoints (program.c).

Needs root (or CAP_BPF and CAP_PERFMON), type information of the kernel and, for a kernel that is new here, bcc; no
kernel headers, no tracefs, no kprobes. Sees all network namespaces of the host. Programs, maps and their attachments
are file descriptors, so the kernel removes them when the process ends.

Before Linux 6.3 the tracepoints sock_send_length and sock_recv_length are missing; tcp_rcv_space_adjust replaces them.
It does not see a connection that only sends and was opened before its process was watched.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import math
import socket
import time
from functools import lru_cache
from typing import Any

from dynamix_ps.metrics.network.connection import Connection, SourceError, endpoint
from dynamix_ps.metrics.network.ebpf.bpf import OnDemand, function_fact
from dynamix_ps.metrics.network.ebpf.compiler import ON_DEMAND
from dynamix_ps.metrics.network.ebpf.foreign_sockets import foreign_sockets
from dynamix_ps.metrics.network.ebpf.loaded_program import LoadedProgram
from dynamix_ps.metrics.network.ebpf.program_cache import kernel_program
from dynamix_ps.metrics.network.permission import check_permitted

CLOSED_KEPT_S = 60.0  # long enough for readers that ask every few seconds
_MAX_PROCESSES = 1024
_MAX_CONNECTIONS = 8192
_CLOCK_MONOTONIC_COARSE = 6  # its resolution is one tick of the kernel
_REFRESHED = 0  # what program.c's `refresh` returns
_IPV4 = 2

_Key = tuple[
    int, int
]  # address of a socket in the kernel, which reuses it, and time of the connection's first sighting


class _RawConnection(ctypes.Structure):
    """`struct connection` of program.c."""

    _fields_ = (
        ("born_ns", ctypes.c_uint64),
        ("inode", ctypes.c_uint64),
        ("bytes_out", ctypes.c_uint64),
        ("bytes_in", ctypes.c_uint64),
        ("retransmits", ctypes.c_uint32),
        ("srtt_us8", ctypes.c_uint32),
        ("busy_ticks", ctypes.c_uint32),
        ("unsent", ctypes.c_uint32),
        ("unread", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),
        ("netns", ctypes.c_uint32),
        ("family", ctypes.c_uint16),
        ("local_port", ctypes.c_uint16),
        ("remote_port", ctypes.c_uint16),
        ("padding", ctypes.c_uint16 * 3),
        ("local", ctypes.c_uint8 * 16),
        ("remote", ctypes.c_uint8 * 16),
    )


class _ClosedKey(ctypes.Structure):
    """`struct closed_key` of program.c."""

    _fields_ = (("socket", ctypes.c_uint64), ("born_ns", ctypes.c_uint64))


_MAP_TYPES = {
    "watched": (ctypes.c_uint32, ctypes.c_uint8),
    "connections": (ctypes.c_uint64, _RawConnection),
    "closed": (_ClosedKey, _RawConnection),
    "lost": (ctypes.c_int, ctypes.c_uint64),
}


class EbpfCollector:
    """One loaded and attached program. Not thread safe."""

    def __init__(self) -> None:
        """Load and attach; where this kernel is new, compile before, which takes a second or two.

        Raises SourceError with the reason if that fails.
        """
        check_permitted()
        program = kernel_program([f"-DMAX_PROCESSES={_MAX_PROCESSES}", f"-DMAX_CONNECTIONS={_MAX_CONNECTIONS}"])
        self._tick_s = time.clock_getres(_CLOCK_MONOTONIC_COARSE) if program.counts_busy else math.nan
        self._program = LoadedProgram(program, _MAP_TYPES)
        self._refresh, self._adopt = (OnDemand(self._program.functions[name]) for name in ON_DEMAND)
        self._open_map, self._closed_map = self._program.maps["connections"], self._program.maps["closed"]
        self._watched_map, self._lost_map = self._program.maps["watched"], self._program.maps["lost"]
        self._watched: set[int] = set()
        self._closed: dict[_Key, tuple[float, Connection]] = {}  # with the time to drop it
        try:
            self._refresh(0)
        except SourceError:
            self.close()
            raise

    def watch(self, pid: int) -> None:
        """Watch the connections of this process, including those that are open already.

        If its open files cannot be read (a container without CAP_SYS_PTRACE), an open connection is seen when the
        process next uses it. Raises SourceError if too many processes are watched.
        """
        try:
            self._watched_map[ctypes.c_uint32(pid)] = ctypes.c_uint8(1)
        except OSError as error:
            raise SourceError(
                f"process {pid} cannot be watched ({len(self._watched)} are watched already): {error.strerror}"
            ) from None
        self._watched.add(pid)
        for descriptor in foreign_sockets(pid):
            self._adopt(descriptor, pid)

    def unwatch(self, pid: int) -> None:
        """Stop watching this process and drop its connections. No effect if it is not watched."""
        if pid not in self._watched:
            return
        self._watched.discard(pid)
        self._watched_map.discard(ctypes.c_uint32(pid))
        for key in self._open_map.all_keys():
            with contextlib.suppress(KeyError):  # closed in the meantime
                if self._open_map[key].pid == pid:
                    self._open_map.discard(key)
        self._collect_closed(time.monotonic())
        self._closed = {key: entry for key, entry in self._closed.items() if entry[1].pid != pid}

    def read(self, pid: int = 0) -> tuple[Connection, ...]:
        """The present state of all connections, of one process or of all watched ones.

        Closed connections stay for `CLOSED_KEPT_S`.
        """
        now_s = time.monotonic()
        opened: dict[_Key, Connection] = {}
        for key in self._open_map.all_keys():
            if self._refresh(key.value, pid) != _REFRESHED:
                continue
            with contextlib.suppress(KeyError):  # closed in the meantime: it is in the other map
                raw = self._open_map[key]
                opened[key.value, raw.born_ns] = self._connection(raw, closed=False)
        self._collect_closed(now_s)
        closed = [connection for _, connection in self._closed.values()]
        still_open = [connection for key, connection in opened.items() if key not in self._closed]
        # A socket that connects a second time has the same id: only its newest connection is returned.
        by_name = {connection.id: connection for connection in (*closed, *still_open)}
        wanted = self._watched & {pid} if pid else self._watched
        return tuple(connection for connection in by_name.values() if connection.pid in wanted)

    @property
    def lost(self) -> int:
        """Connections that did not fit into a kernel map, or whose last values are missing."""
        return int(self._lost_map[ctypes.c_int(0)].value)

    def run_time_ns(self) -> int:
        """CPU time of the programs so far, over all cores; the kernel counts it while kernel.bpf_stats_enabled is 1."""
        return sum(function_fact(function, "run_time_ns") for function in self._program.functions.values())

    def close(self) -> None:
        """Detach and free everything."""
        self._program.close()

    def _collect_closed(self, now_s: float) -> None:
        for key in self._closed_map.all_keys():
            with contextlib.suppress(KeyError):
                raw = self._closed_map[key]
                self._closed[key.socket, key.born_ns] = (now_s + CLOSED_KEPT_S, self._connection(raw, closed=True))
                self._closed_map.discard(key)
        self._closed = {key: entry for key, entry in self._closed.items() if entry[0] > now_s}

    def _connection(self, raw: Any, closed: bool) -> Connection:
        size = 4 if raw.family == _IPV4 else 16
        return Connection(
            # The id stays the same after a restart of the collector, and in sockdiag.py.
            id=f"{raw.inode}-{_port(raw.local_port)}-{_port(raw.remote_port)}",
            pid=raw.pid,
            netns=raw.netns,
            local=_endpoint(bytes(raw.local[:size]), raw.local_port),
            remote=_endpoint(bytes(raw.remote[:size]), raw.remote_port),
            bytes_out=raw.bytes_out,
            bytes_in=raw.bytes_in,
            retransmits=raw.retransmits,
            busy_s=raw.busy_ticks * self._tick_s,
            rtt_s=raw.srtt_us8 / 8e6 if raw.srtt_us8 else math.nan,
            unsent_bytes=0 if closed else raw.unsent,
            unread_bytes=0 if closed else raw.unread,
            closed=closed,
        )


def _port(raw: int) -> int:
    return socket.ntohs(raw)


@lru_cache(maxsize=2 * _MAX_CONNECTIONS)  # making the text is the largest cost of a connection, and it never changes
def _endpoint(address: bytes, port: int) -> str:
    return endpoint(str(ipaddress.ip_address(address)), _port(port))
