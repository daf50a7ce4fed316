"""What every source of network metrics returns: absolute counters of TCP connections, as the kernel keeps them."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from typing import Literal, Protocol

SourceName = Literal["ebpf", "sockdiag", "procfs", "none"]


@dataclass(frozen=True, slots=True)
class Connection:
    """One end of a TCP connection. Counters are absolute since the connection was opened; NaN is unknown."""

    id: str  # unique among all connections of a source
    pid: int  # of its owner; 0: unknown
    netns: int  # inode of its network namespace; 0: unknown
    local: str  # address:port, see `endpoint`
    remote: str
    bytes_out: float  # payload acknowledged by the other end
    bytes_in: float  # payload received
    retransmits: float  # segments sent again
    busy_s: float = math.nan  # time during which sent data was not yet acknowledged
    rtt_s: float = math.nan  # smoothed round trip time
    unsent_bytes: float = math.nan  # written by the process, not yet acknowledged
    unread_bytes: float = math.nan  # received, not yet read by the process
    closed: bool = False  # whether these are its last values


@dataclass(frozen=True, slots=True)
class Reading:
    """The connections of one process at one moment."""

    source: SourceName
    taken_s: float  # unix time of the kernel's answer
    connections: tuple[Connection, ...]
    lost: int = 0  # connections that the source has left out so far
    shared: bool = False  # whether the counters include other roles in the same network namespace


class NetworkSource(Protocol):
    """Reads the connections of this process."""

    name: SourceName

    def read(self) -> Reading:
        """Raises SourceError when the source no longer works; the caller then uses another one."""
        ...

    def close(self) -> None: ...


class SourceError(Exception):
    """A source cannot be used. The text says why, for `degraded` events and `dynamix doctor`; `fix` says what to do."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.fix = fix


def endpoint(address: str, port: int) -> str:
    """`10.0.0.1:80` or `[fe80::1]:80`; an IPv4 address mapped into IPv6 is written as IPv4."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        return f"{ip.ipv4_mapped}:{port}" if ip.ipv4_mapped else f"[{ip}]:{port}"
    return f"{ip}:{port}"
