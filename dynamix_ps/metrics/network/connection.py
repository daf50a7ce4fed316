"""What every source of network metrics yields: absolute counters of TCP connections, as the kernel keeps them."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from typing import Literal, Protocol

SourceName = Literal["ebpf", "sockdiag", "procfs", "none"]


@dataclass(frozen=True, slots=True)
class Connection:
    """One end of a TCP connection. Counters are absolute since the connection was opened; NaN is unknown."""

    id: str  # unique among all connections a source ever yields
    pid: int  # of its owner; 0: unknown
    netns: int  # inode of its network namespace; 0: unknown
    local: str  # address:port, see `endpoint`
    remote: str
    bytes_out: float  # payload the other end has acknowledged
    bytes_in: float  # payload received
    retransmits: float  # segments sent again
    busy_s: float = math.nan  # time during which sent data was not yet acknowledged
    rtt_s: float = math.nan  # smoothed round trip
    unsent_bytes: float = math.nan  # written by the process, not yet acknowledged
    unread_bytes: float = math.nan  # received, not yet read by the process
    closed: bool = False  # these are its last values


@dataclass(frozen=True, slots=True)
class Reading:
    """The connections of one process at one moment."""

    source: SourceName
    taken_s: float  # unix time at which the kernel was asked
    connections: tuple[Connection, ...]
    lost: int = 0  # connections the source had to leave out so far
    shared: bool = False  # counters are of the whole network namespace, in which other roles run as well


class NetworkSource(Protocol):
    """Reads the connections of this process."""

    name: SourceName

    def read(self) -> Reading:
        """Raises SourceError when it does not work any more; another source is to be used then."""
        ...

    def close(self) -> None: ...


class SourceError(Exception):
    """A source cannot be used. The text says why, in words for `degraded` and `dynamix doctor`; `fix` what to do."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.fix = fix


def endpoint(address: str, port: int) -> str:
    """`10.0.0.1:80` or `[fe80::1]:80`; an IPv4 address mapped into IPv6 is written as IPv4."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        return f"{ip.ipv4_mapped}:{port}" if ip.ipv4_mapped else f"[{ip}]:{port}"
    return f"{ip}:{port}"
