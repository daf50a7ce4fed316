"""Counters of a namespace, from files in the format of the kernel."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.procfs import ProcfsSource

_NETSTAT = """TcpExt: SyncookiesSent TCPTimeouts
TcpExt: 0 3
IpExt: InNoRoutes InOctets OutOctets
IpExt: 0 1000 2000
"""
_SNMP = """Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm MaxConn RetransSegs
Tcp: 1 -1 17
"""
_SNMP6 = "Ip6InReceives                   \t5\nIp6InOctets\t30\nIp6OutOctets\t400\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    process(tmp_path, "self", netns="a")
    net = tmp_path / "self" / "net"
    net.mkdir()
    (net / "netstat").write_text(_NETSTAT)
    (net / "snmp").write_text(_SNMP)
    (net / "snmp6").write_text(_SNMP6)
    return tmp_path


def process(proc: Path, pid: str, netns: str, environment: bytes = b"") -> None:
    """Namespaces are told apart by the inode of the file they are shown as."""
    namespace = proc / f"namespace-{netns}"
    namespace.touch()
    (proc / pid / "ns").mkdir(parents=True)
    (proc / pid / "ns" / "net").hardlink_to(namespace)
    (proc / pid / "environ").write_bytes(environment)


def test_one_pseudo_connection_with_both_protocols(proc: Path) -> None:
    (total,) = ProcfsSource(proc).read().connections
    assert (total.bytes_in, total.bytes_out, total.retransmits) == (1030, 2400, 17)
    assert (total.local, total.remote) == ("*", "*")
    assert all(math.isnan(value) for value in (total.rtt_s, total.busy_s, total.unsent_bytes, total.unread_bytes))


def test_without_ipv6(proc: Path) -> None:
    (proc / "self/net/snmp6").unlink()
    (total,) = ProcfsSource(proc).read().connections
    assert (total.bytes_in, total.bytes_out) == (1000, 2000)


@pytest.mark.parametrize(
    ("pid", "netns", "environment", "shared"),
    [
        ("7", "a", b"A=1\0DMLC_ROLE=server\0", True),
        ("7", "b", b"DMLC_ROLE=server\0", False),
        ("7", "a", b"NOT_DMLC_ROLE=server\0", False),
        pytest.param(str(os.getpid()), "a", b"DMLC_ROLE=worker\0", False, id="this process"),
    ],
)
def test_shared_with_another_role(proc: Path, pid: str, netns: str, environment: bytes, shared: bool) -> None:
    process(proc, pid, netns, environment)
    assert ProcfsSource(proc).read().shared is shared


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("snmp", "Tcp: RetransSegs\n"),
        ("snmp", "Tcp: RetransSegs\nTcp: many\n"),
        ("snmp", "Tcp: RetransSegs InSegs\nTcp: 1\n"),
        ("snmp", "Tcp: InSegs\nTcp: 1\n"),
        ("netstat", "IpExt: InOctets\nIpExt: 5\n"),
        ("snmp6", "Ip6InOctets\n"),
        ("snmp6", "Ip6InOctets 1 Ip6OutOctets x"),
        ("snmp6", ""),
    ],
)
def test_damaged_files_are_an_error_that_names_them(proc: Path, file: str, text: str) -> None:
    (proc / "self/net" / file).write_text(text)
    with pytest.raises(SourceError, match="self/net"):
        ProcfsSource(proc)


def test_missing_files_are_an_error(proc: Path) -> None:
    (proc / "self/net/netstat").unlink()
    with pytest.raises(SourceError, match="netstat: No such file"):
        ProcfsSource(proc)


def test_real_one_counts_this_machine() -> None:
    (total,) = ProcfsSource().read().connections
    assert total.bytes_in >= 0
    assert total.netns == os.stat("/proc/self/ns/net").st_ino
