"""Connections of watched processes from the kernel, by eBPF programs on raw tracepoints (program.c).

Needs root (or CAP_BPF and CAP_PERFMON), type information of the kernel and bcc; no kernel headers, no tracefs, no
kprobes. Sees all network namespaces of the host. Programs, maps and their attachments are file descriptors, so the
kernel removes them when the process ends.

Before Linux 6.3 the tracepoints sock_send_length and sock_recv_length are missing; tcp_rcv_space_adjust replaces them.
It does not see a connection that only sends and was opened before its process was watched.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import math
import os
import platform
import socket
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from dynamix_ps.metrics.network.bcc_loader import load_bcc, own_headers, quiet
from dynamix_ps.metrics.network.bpf import OnDemand, program_fact
from dynamix_ps.metrics.network.btf import NEWER_KERNEL, Btf
from dynamix_ps.metrics.network.connection import Connection, SourceError, endpoint
from dynamix_ps.metrics.network.foreign_sockets import foreign_sockets
from dynamix_ps.metrics.network.permission import check_permitted, refused

CLOSED_KEPT_S = 60.0  # long enough for readers that ask every few seconds
STATE_CHANGES = ("on_state", "on_state_2", "on_state_3")  # program.c says why there are several

_SOURCE = Path(__file__).with_name("program.c")
_MAX_PROCESSES = 1024
_MAX_CONNECTIONS = 8192
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # inode of the first one after boot, fixed in include/linux/proc_ns.h
_CLOCK_MONOTONIC_COARSE = 6  # its resolution is one tick of the kernel
_REFRESHED = 0  # what program.c's `refresh` returns
_IPV4 = 2

# Macro in program.c: struct and field.
_FIELDS = {
    "FAMILY": ("sock_common", "skc_family"),
    "STATE": ("sock_common", "skc_state"),
    "FLAGS": ("sock_common", "skc_flags"),
    "REMOTE_PORT": ("sock_common", "skc_dport"),
    "LOCAL_PORT": ("inet_sock", "inet_sport"),  # skc_num becomes 0 when a connection closes
    "LOCAL_IPV4": ("sock_common", "skc_rcv_saddr"),
    "REMOTE_IPV4": ("sock_common", "skc_daddr"),
    "NET": ("sock_common", "skc_net.net"),
    "NET_INODE": ("net", "ns.inum"),
    "PROTOCOL": ("sock", "sk_protocol"),
    "SOCKET": ("sock", "sk_socket"),
    "SOCKET_SK": ("socket", "sk"),
    "FILES": ("task_struct", "files"),
    "FILE_TABLE": ("files_struct", "fdt"),
    "FILE_LIST": ("fdtable", "fd"),
    "FILE_SOCKET": ("file", "private_data"),
    "BYTES_ACKED": ("tcp_sock", "bytes_acked"),
    "BYTES_SENT": ("tcp_sock", "bytes_sent"),
    "BYTES_RETRANS": ("tcp_sock", "bytes_retrans"),
    "BYTES_RECEIVED": ("tcp_sock", "bytes_received"),
    "RETRANSMITS": ("tcp_sock", "total_retrans"),
    "SRTT": ("tcp_sock", "srtt_us"),
    "WRITE_SEQ": ("tcp_sock", "write_seq"),
    "SND_UNA": ("tcp_sock", "snd_una"),
    "RCV_NXT": ("tcp_sock", "rcv_nxt"),
    "COPIED_SEQ": ("tcp_sock", "copied_seq"),
}
_IPV6_FIELDS = {
    "LOCAL_IPV6": ("sock_common", "skc_v6_rcv_saddr"),
    "REMOTE_IPV6": ("sock_common", "skc_v6_daddr"),
}
_BUSY_FIELDS = {
    "CHRONO_START": ("tcp_sock", "chrono_start"),
    "CHRONO_STAT": ("tcp_sock", "chrono_stat"),
}

_Key = tuple[
    int, int
]  # address of a socket in the kernel, which reuses it, and time of the connection's first sighting


class EbpfCollector:
    """One loaded and attached program. Not thread safe."""

    def __init__(self) -> None:
        """Load and attach; takes about half a second. Raises SourceError with the reason if that fails."""
        check_permitted()
        btf = Btf()
        busy = _offsets(btf, _BUSY_FIELDS, needed=False)
        self._tick_s = time.clock_getres(_CLOCK_MONOTONIC_COARSE) if busy else math.nan
        flags = _offsets(btf, _FIELDS) + _inode_offset(btf) + _offsets(btf, _IPV6_FIELDS, needed=False)
        flags += busy + _busy_type(btf) if busy else []
        flags += [*_pid_namespace(), f"-DMAX_PROCESSES={_MAX_PROCESSES}", f"-DMAX_CONNECTIONS={_MAX_CONNECTIONS}"]
        self._bpf = _load(flags, _hooks(btf))
        self._programs = [function.fd for function in self._bpf.funcs.values()]
        self._refresh = OnDemand(self._bpf.funcs[b"refresh"].fd)
        self._adopt = OnDemand(self._bpf.funcs[b"adopt"].fd)
        self._open_map = self._bpf[b"connections"]
        self._closed_map = self._bpf[b"closed"]
        self._watched_map = self._bpf[b"watched"]
        self._lost_map = self._bpf[b"lost"]
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
        except Exception as error:  # bcc raises no narrower type
            raise SourceError(
                f"process {pid} cannot be watched ({len(self._watched)} are watched already): {error}"
            ) from None
        self._watched.add(pid)
        for descriptor in foreign_sockets(pid):
            self._adopt(descriptor, pid)

    def unwatch(self, pid: int) -> None:
        """Stop watching this process and drop its connections. No effect if it is not watched."""
        if pid not in self._watched:
            return
        self._watched.discard(pid)
        with contextlib.suppress(KeyError):
            del self._watched_map[ctypes.c_uint32(pid)]
        for key, raw in list(self._open_map.items()):
            if raw.pid == pid:
                self._drop(key)
        self._collect_closed(time.monotonic())
        self._closed = {key: entry for key, entry in self._closed.items() if entry[1].pid != pid}

    def read(self, pid: int = 0) -> tuple[Connection, ...]:
        """The present state of all connections, of one process or of all watched ones.

        Closed connections stay for `CLOSED_KEPT_S`.
        """
        now_s = time.monotonic()
        opened: dict[_Key, Connection] = {}
        for key in list(self._open_map.keys()):
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
        return sum(program_fact(program, "run_time_ns") for program in self._programs)

    def close(self) -> None:
        """Detach and free everything."""
        self._bpf.cleanup()

    def _collect_closed(self, now_s: float) -> None:
        for key, raw in list(self._closed_map.items()):
            self._closed[key.socket, key.born_ns] = (now_s + CLOSED_KEPT_S, self._connection(raw, closed=True))
            with contextlib.suppress(KeyError):
                del self._closed_map[key]
        self._closed = {key: entry for key, entry in self._closed.items() if entry[0] > now_s}

    def _drop(self, key: Any) -> None:
        with contextlib.suppress(KeyError):
            del self._open_map[key]

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


def _load(flags: list[str], hooks: dict[str, tuple[str, ...]]) -> Any:
    bcc = load_bcc()
    program: Any = None
    with quiet() as lines, own_headers():
        try:
            program = bcc.BPF(text=_SOURCE.read_bytes(), cflags=flags)
            for tracepoint, functions in hooks.items():
                for function in functions:
                    _attach(bcc, program, tracepoint, function)
            for on_demand in (b"refresh", b"adopt"):
                program.load_func(on_demand, bcc.BPF.RAW_TRACEPOINT)
            problem = ""
        except Exception as error:  # bcc raises nothing narrower
            problem = str(error)
            if program is not None:
                program.cleanup()
    if problem:
        raise _explained(problem, lines)
    return program


def _attach(bcc: Any, program: Any, tracepoint: str, function: str) -> None:
    """Attach as bcc does, which allows one function per tracepoint only. bcc's `cleanup` detaches it."""
    loaded = program.load_func(function.encode(), bcc.BPF.RAW_TRACEPOINT)
    descriptor = bcc.lib.bpf_attach_raw_tracepoint(loaded.fd, tracepoint.encode())
    if descriptor < 0:
        raise OSError(f"{function} cannot be attached to the tracepoint {tracepoint}")
    program.raw_tracepoint_fds[function.encode()] = descriptor


def _explained(problem: str, lines: list[str]) -> SourceError:
    """The message of bcc, the compiler or the verifier in one line."""
    if "super-user" in problem:  # bcc's text for any EPERM
        return refused()
    said = [line.strip() for line in lines if line.strip()]
    telling = [line for line in said if "error" in line.lower()] or said[-1:]
    reason = f"{problem} ({telling[0]})" if telling else problem
    return SourceError(reason, f"report it, with the kernel's version ({platform.release()})")


def _hooks(btf: Btf) -> dict[str, tuple[str, ...]]:
    """Functions of program.c by tracepoint."""
    changes: dict[str, tuple[str, ...]] = {"inet_sock_set_state": STATE_CHANGES}
    hooks = changes | {"sock_send_length": ("on_send",), "sock_recv_length": ("on_receive",)}
    if not all(btf.has_tracepoint(name) for name in hooks):
        hooks = changes | {"tcp_rcv_space_adjust": ("on_receive",)}
    missing = [name for name in hooks if not btf.has_tracepoint(name)]
    if missing:
        raise SourceError(f"this kernel has no tracepoint {' and no '.join(missing)}", NEWER_KERNEL)
    return hooks


def _offsets(btf: Btf, fields: dict[str, tuple[str, str]], needed: bool = True) -> list[str]:
    """Compiler flags with the offsets of the fields; empty if one of them is missing and not needed."""
    try:
        return [f"-DAT_{macro}={btf.offset(*field)}" for macro, field in fields.items()]
    except SourceError:
        if needed:
            raise
        return []


def _inode_offset(btf: Btf) -> list[str]:
    """Offset of the inode number from a `struct socket`: both are parts of one `struct socket_alloc`."""
    before = btf.offset("socket_alloc", "vfs_inode") - btf.offset("socket_alloc", "socket")
    return [f"-DAT_INODE={before + btf.offset('inode', 'i_ino')}"]


def _busy_type(btf: Btf) -> list[str]:
    """The field of the running interval: a bit field in older kernels, a byte in newer ones."""
    field = btf.field("tcp_sock", "chrono_type")
    shift, mask = field.bit_offset % 8, (1 << (field.bits or 8)) - 1
    return [f"-DAT_CHRONO_TYPE={field.offset}", f"-DCHRONO_TYPE_SHIFT={shift}", f"-DCHRONO_TYPE_MASK={mask}"]


def _pid_namespace() -> list[str]:
    """Flags that identify this pid namespace; empty in the first one, where pids are those of the kernel."""
    own = os.stat("/proc/self/ns/pid")
    if own.st_ino == _FIRST_PID_NAMESPACE:
        return []
    device = os.major(own.st_dev) << 20 | os.minor(own.st_dev)  # in the kernel's encoding
    return [f"-DPID_NAMESPACE_DEVICE={device}ULL", f"-DPID_NAMESPACE_INODE={own.st_ino}ULL"]


def _port(raw: int) -> int:
    return socket.ntohs(raw)


@lru_cache(maxsize=2 * _MAX_CONNECTIONS)  # making the text is the largest cost of a connection, and it never changes
def _endpoint(address: bytes, port: int) -> str:
    return endpoint(str(ipaddress.ip_address(address)), _port(port))
