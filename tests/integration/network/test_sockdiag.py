"""sock_diag on real connections: the same numbers and the same ids as eBPF."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.ebpf.collector import EbpfCollector
from dynamix_ps.metrics.network.sockdiag import SockDiagSource
from tests.integration.network.tcp_pairs import WAYS, connect, listener, name, pair

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def source() -> Iterator[SockDiagSource]:
    made = SockDiagSource()
    yield made
    made.close()


@pytest.mark.parametrize("way", WAYS)
def test_bytes_are_those_sent_at_both_ends(source: SockDiagSource, way: str) -> None:
    with pair(way) as ends:
        ends.send(there=1_234_567, back=89)
        reading = source.read()
        dialled, accepted = ends.of(reading.connections)
        assert (dialled.bytes_out, dialled.bytes_in) == (1_234_567, 89)
        assert (accepted.bytes_out, accepted.bytes_in) == (89, 1_234_567)
        assert (dialled.local, dialled.remote) == (accepted.remote, accepted.local)
        assert dialled.pid == accepted.pid == os.getpid()
        assert 0 < dialled.rtt_s < 1
        assert (reading.source, reading.shared, reading.lost) == ("sockdiag", False, 0)


def test_the_end_of_a_stream_is_no_byte(source: SockDiagSource) -> None:
    with pair() as ends:
        ends.send(there=10, back=3)
        ends.dialled.shutdown(socket.SHUT_WR)
        assert ends.accepted.recv(1) == b""
        dialled, accepted = ends.of(source.read().connections)
        assert (dialled.bytes_out, accepted.bytes_in) == (10, 10)


def test_queues(source: SockDiagSource) -> None:
    with pair() as ends:
        ends.dialled.sendall(b"x" * 500)
        ends.accepted.recv(100, socket.MSG_WAITALL)
        _, accepted = ends.of(source.read().connections)
        assert accepted.unread_bytes == 400


def test_listening_and_closed_sockets_and_those_of_others_are_left_out(source: SockDiagSource) -> None:
    with listener() as listening:
        program = f"import socket; socket.create_connection(('127.0.0.1', {listening.getsockname()[1]})).recv(1)"
        other = subprocess.Popen([sys.executable, "-c", program])
        try:
            accepted, _ = listening.accept()
            ends = connect(listening)
            closed = name(ends.dialled)
            ends.close()
            found = source.read().connections
            assert [each.local for each in found] == [name(accepted)]
            assert closed not in {each.remote for each in found}
            accepted.close()
        finally:
            other.kill()
            other.wait()


def test_sees_what_ebpf_sees(source: SockDiagSource) -> None:
    """So a change from one to the other is no change for who adds up."""
    try:
        collector = EbpfCollector()
    except SourceError as error:
        pytest.skip(f"eBPF: {error}")
    try:
        with pair("ipv6") as one, pair("ipv4 mapped into ipv6") as two:
            one.send(there=300_000, back=1)
            two.send(there=40, back=0)
            two.dialled.sendall(b"x" * 5)
            collector.watch(os.getpid())
            by_ebpf = {each.id: dataclasses.replace(each, rtt_s=0, busy_s=0) for each in collector.read()}
            by_diag = {each.id: dataclasses.replace(each, rtt_s=0, busy_s=0) for each in source.read().connections}
            assert by_ebpf == by_diag
            assert len(by_ebpf) == 4
    finally:
        collector.close()


def test_without_the_package_the_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    with pytest.raises(SourceError, match="pyroute2 cannot be imported") as error:
        SockDiagSource()
    assert "pip install" in error.value.fix


_UNPRIVILEGED = """
import socket
from dynamix_ps.metrics.network.sockdiag import SockDiagSource
assert "CapEff:\t0000000000000000" in open("/proc/self/status").read()
listening = socket.create_server(("127.0.0.1", 0))
end = socket.create_connection(listening.getsockname())
end.sendall(b"x" * 10)
listening.accept()[0].recv(10)
print([each.bytes_out for each in SockDiagSource().read().connections])
"""


def test_needs_no_privilege() -> None:
    without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    done = subprocess.run([*without, sys.executable, "-c", _UNPRIVILEGED], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[10]"
