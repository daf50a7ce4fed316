"""This process's TCP connections, from the kernel's sock_diag interface (netlink), without privilege.

pyroute2 implements netlink. Its import takes about 25 MB and 0.1 s, so the first source imports it. One reading takes 1
to 2 ms. It does not see connections that open and close between two readings.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import sys
import time
from typing import Any

from dynamix_ps.metrics.network.connection import Connection, Reading, SourceError, SourceName, endpoint

_WITH_TCP_INFO = 1 << 1  # INET_DIAG_INFO, number 2 of the extensions
_FIN_RECEIVED = (8, 9, 11)  # CLOSE_WAIT, LAST_ACK, CLOSING
_NOT_ESTABLISHED = (3, 6, 7, 10, 12)  # SYN_RECV, TIME_WAIT, CLOSE, LISTEN, NEW_SYN_RECV: without counters
_STATES = 0xFFF & ~sum(1 << state for state in _NOT_ESTABLISHED)


class SockDiagSource:
    """See NetworkSource."""

    name: SourceName = "sockdiag"

    def __init__(self) -> None:
        """Raises SourceError if pyroute2 is missing or the kernel does not answer."""
        try:
            from pyroute2 import DiagSocket
        except ImportError as error:
            reason = f"the Python package pyroute2 cannot be imported: {error}"
            raise SourceError(reason, f"{sys.executable} -m pip install 'pyroute2>=0.9.4'") from None
        self._open: Any = DiagSocket
        self.read()

    def read(self) -> Reading:
        """Raises SourceError."""
        taken_s = time.time()
        try:
            own, netns = _own_inodes(), os.stat("/proc/self/ns/net").st_ino
            with self._open() as diag:
                answers = [answer for family in (socket.AF_INET, socket.AF_INET6) for answer in _ask(diag, family)]
        except Exception as error:  # pyroute2's errors have no common base
            raise SourceError(f"sock_diag does not answer: {type(error).__name__}: {error}") from None
        connections = tuple(_connection(answer, netns) for answer in answers if answer["idiag_inode"] in own)
        return Reading(source=self.name, taken_s=taken_s, connections=connections)

    def close(self) -> None:
        """Nothing stays open between readings."""


def _own_inodes() -> set[int]:
    inodes: set[int] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # closed in the meantime
            continue
        if target.startswith("socket:["):
            inodes.add(int(target[len("socket:[") : -1]))
    return inodes


def _ask(diag: Any, family: int) -> list[Any]:
    try:
        return list(diag.get_sock_stats(family=family, states=_STATES, extensions=_WITH_TCP_INFO))
    except Exception as error:
        if family == socket.AF_INET6 and getattr(error, "code", None) in (errno.ENOENT, errno.EAFNOSUPPORT):
            return []  # a kernel without IPv6
        raise


def _connection(answer: Any, netns: int) -> Connection:
    info = answer.get_attr("INET_DIAG_INFO") or {}
    local_port, remote_port = answer["idiag_sport"], answer["idiag_dport"]
    return Connection(
        id=f"{answer['idiag_inode']}-{local_port}-{remote_port}",  # as in ebpf/collector.py
        pid=os.getpid(),
        netns=netns,
        local=endpoint(answer["idiag_src"], local_port),
        remote=endpoint(answer["idiag_dst"], remote_port),
        bytes_out=_payload_acknowledged(info),
        bytes_in=_payload_received(info),
        retransmits=info.get("tcpi_total_retrans", math.nan),
        busy_s=info.get("tcpi_busy_time", math.nan) / 1e6,
        rtt_s=(info.get("tcpi_rtt") or math.nan) / 1e6,
        unsent_bytes=answer["idiag_wqueue"],
        unread_bytes=answer["idiag_rqueue"],
    )


def _payload_acknowledged(info: dict[str, float]) -> float:
    """Acknowledged bytes without SYN and FIN, which the kernel counts as one byte each, but not as bytes sent."""
    acknowledged = info.get("tcpi_bytes_acked", math.nan)
    sent_once = info.get("tcpi_bytes_sent", math.nan) - info.get("tcpi_bytes_retrans", math.nan)
    if math.isnan(sent_once):  # before Linux 4.19
        return acknowledged
    return acknowledged - min(2, max(0, acknowledged - sent_once))


def _payload_received(info: dict[str, float]) -> float:
    return info.get("tcpi_bytes_received", math.nan) - (info.get("tcpi_state") in _FIN_RECEIVED)
