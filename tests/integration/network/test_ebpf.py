"""The eBPF collector on real connections: exact, for the right process, and also for closed connections."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.testbed.ports import free_port
from dynamix_ps.metrics.network.connection import Connection
from dynamix_ps.metrics.network.ebpf import collector as ebpf
from dynamix_ps.metrics.network.ebpf.collector import CLOSED_KEPT_S, EbpfCollector
from tests.integration.network.tcp_pairs import WAYS, connect, listener, name, pair

pytestmark = pytest.mark.timeout(90)

# Fields of struct tcp_info, include/uapi/linux/tcp.h: tcpi_total_retrans and tcpi_busy_time.
_TOTAL_RETRANS, _BUSY_TIME = slice(100, 104), slice(168, 176)


@pytest.fixture
def collector(loaded: EbpfCollector) -> Iterator[EbpfCollector]:
    """Watches this process; starts without connections."""
    loaded.watch(os.getpid())
    yield loaded
    loaded.unwatch(os.getpid())


class Dialler:
    """Another process that dials a listener and sends what it is told to."""

    _PROGRAM = """
import socket, sys
end = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print(end.getsockname()[1], flush=True)
for line in sys.stdin:
    end.sendall(b"x" * int(line))
    print("sent", flush=True)
"""

    def __init__(self, listening: socket.socket) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self._PROGRAM, str(listening.getsockname()[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.local = f"127.0.0.1:{self._line().strip()}"
        self._accepted, _ = listening.accept()
        self._accepted.settimeout(10)

    def send(self, size: int) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{size}\n")
        self.process.stdin.flush()
        while size:
            size -= len(self._accepted.recv(65536))
        self._line()

    def end(self) -> None:
        """Killed, and its connection closed at both ends."""
        self.process.kill()
        self.process.communicate()
        self._accepted.close()

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()


@pytest.fixture
def diallers() -> Iterator[tuple[Dialler, Dialler]]:
    with listener() as listening:
        both = Dialler(listening), Dialler(listening)
        yield both
        for each in both:
            each.end()


@pytest.mark.parametrize("way", WAYS)
def test_bytes_are_those_sent_at_both_ends(collector: EbpfCollector, way: str) -> None:
    with pair(way) as ends:
        ends.send(there=1_234_567, back=89)
        dialled, accepted = ends.of(collector.read())
        assert (dialled.bytes_out, dialled.bytes_in) == (1_234_567, 89)
        assert (accepted.bytes_out, accepted.bytes_in) == (89, 1_234_567)
        assert (dialled.local, dialled.remote) == (accepted.remote, accepted.local)
        assert dialled.pid == accepted.pid == os.getpid()
        assert dialled.netns == os.stat("/proc/self/ns/net").st_ino
        assert 0 < dialled.rtt_s < 1
        # A busy machine acknowledges late even on loopback, and the kernel sends again.
        assert (dialled.retransmits > 0) == (_of_tcp_info(ends.dialled, _TOTAL_RETRANS) > 0)
        assert not dialled.closed


@pytest.mark.parametrize("way", WAYS)
def test_connections_opened_before_the_watch_are_whole(loaded: EbpfCollector, way: str) -> None:
    with pair(way) as ends:
        ends.send(there=1000, back=20)
        assert loaded.read() == ()
        loaded.watch(os.getpid())
        try:
            dialled, accepted = ends.of(loaded.read())
            assert (dialled.bytes_out, dialled.bytes_in) == (1000, 20)
            assert (accepted.bytes_out, accepted.bytes_in) == (20, 1000)
        finally:
            loaded.unwatch(os.getpid())
        assert loaded.read() == ()


def test_connections_opened_before_are_noticed_when_used_where_files_cannot_be_looked_at(
    loaded: EbpfCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ebpf, "foreign_sockets", lambda pid: iter(()))
    with pair() as ends:
        ends.send(there=1000, back=20)
        loaded.watch(os.getpid())
        try:
            assert loaded.read() == ()
            ends.send(there=1, back=0)
            dialled, accepted = ends.of(loaded.read())
            assert (dialled.bytes_out, accepted.bytes_in) == (1001, 1001)
        finally:
            loaded.unwatch(os.getpid())


def test_processes_are_told_apart(loaded: EbpfCollector, diallers: tuple[Dialler, Dialler]) -> None:
    first, second = diallers
    pids = first.process.pid, second.process.pid
    loaded.watch(pids[0])
    first.send(1000)
    second.send(70)
    assert [(each.pid, each.local, each.bytes_out) for each in loaded.read()] == [(pids[0], first.local, 1000)]
    loaded.watch(pids[1])
    second.send(7)
    found = {(each.pid, each.local, each.bytes_out) for each in loaded.read()}
    assert found == {(pids[0], first.local, 1000), (pids[1], second.local, 77)}
    assert [(each.pid, each.bytes_out) for each in loaded.read(pids[1])] == [(pids[1], 77)]
    loaded.unwatch(pids[0])
    assert {each.pid for each in loaded.read()} == {pids[1]}
    loaded.unwatch(pids[1])


def test_last_values_of_a_killed_process_stay_for_a_while(
    loaded: EbpfCollector, diallers: tuple[Dialler, Dialler], monkeypatch: pytest.MonkeyPatch
) -> None:
    dialler, _ = diallers
    pid = dialler.process.pid
    loaded.watch(pid)
    dialler.send(100)
    dialler.send(10)
    dialler.end()
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    for _ in range(2):
        (last,) = loaded.read()
        assert (last.pid, last.local, last.bytes_out, last.closed) == (pid, dialler.local, 110, True)
    now_s += CLOSED_KEPT_S + 1
    assert loaded.read() == ()
    loaded.unwatch(pid)


def test_closed_at_both_ends(collector: EbpfCollector) -> None:
    with listener() as listening:
        ends = connect(listening)
        ends.send(there=5000, back=600)
        own = name(ends.dialled)
        ends.close()
    found = {each.local == own: each for each in collector.read()}
    assert found[True].closed
    assert (found[True].bytes_out, found[True].bytes_in) == (5000, 600)
    assert (found[False].bytes_out, found[False].bytes_in) == (600, 5000)


def test_a_port_used_again_is_another_connection(collector: EbpfCollector) -> None:
    """The kernel also gives the new socket the address of the old one, as a rule."""
    sizes = [3000, 20, 500, 1, 70_000]
    port = free_port()
    with listener() as listening:
        for size in sizes:
            ends = connect(listening, source_port=port)
            ends.send(there=size, back=0)
            (now,) = [each for each in collector.read() if each.local == name(ends.dialled) and not each.closed]
            assert now.bytes_out == size
            ends.close()
    found = [each for each in collector.read() if each.local.endswith(f":{port}")]
    assert sorted(each.bytes_out for each in found) == sorted(sizes)
    assert len({each.id for each in found}) == len(sizes)


def test_many_short_connections_are_all_counted(collector: EbpfCollector) -> None:
    with listener() as listening:
        for size in range(1, 301):
            ends = connect(listening)
            ends.send(there=size, back=0)
            ends.close()
    found = collector.read()
    assert sum(each.bytes_out for each in found) == sum(each.bytes_in for each in found) == sum(range(301))
    assert collector.lost == 0


def test_a_refused_connection_carried_nothing(collector: EbpfCollector) -> None:
    with listener() as listening:
        address = listening.getsockname()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    (refused,) = collector.read()
    assert (refused.bytes_out, refused.bytes_in, refused.closed) == (0, 0, True)
    assert refused.remote == f"127.0.0.1:{address[1]}"


def test_queues_and_busy_time_are_the_kernels(collector: EbpfCollector) -> None:
    with pair() as ends:
        ends.send(there=1, back=1)  # an accepted end is noticed when it is first used
        ends.dialled.setblocking(False)
        written = 1
        with pytest.raises(BlockingIOError):
            while True:
                written += ends.dialled.send(b"x" * 65536)
        while not (before_s := _busy_s(ends.dialled)):
            time.sleep(0.001)
        dialled, accepted = ends.of(collector.read())
        after_s = _busy_s(ends.dialled)
        # While data is on the way the SYN, too, counts as acknowledged.
        assert written <= dialled.bytes_out + dialled.unsent_bytes <= written + 1
        assert accepted.unread_bytes == accepted.bytes_in - 1
        assert dialled.unsent_bytes > 0
        assert before_s - 1e-9 <= dialled.busy_s <= after_s + 1e-9  # whole ticks, rounded in two ways


def test_other_sockets_are_no_connections(loaded: EbpfCollector) -> None:
    one, other = socket.socketpair()
    with one, other, listener(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("127.0.0.1", 0))
        datagrams.connect(datagrams.getsockname())
        loaded.watch(os.getpid())
        for writer, reader in ((one, other), (datagrams, datagrams)):
            writer.send(b"x")
            reader.recv(1)
        assert loaded.read() == ()
        loaded.unwatch(os.getpid())


def test_a_connection_that_closes_during_a_reading_is_told_once(
    collector: EbpfCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair() as ends:
        ends.send(there=10, back=2)
        translate = collector._connection

        def close_first(raw: Any, closed: bool) -> Connection:
            ends.close()
            return translate(raw, closed)

        monkeypatch.setattr(collector, "_connection", close_first)
        assert sorted((each.bytes_out, each.closed) for each in collector.read()) == [(2, True), (10, True)]


def _busy_s(end: socket.socket) -> float:
    return _of_tcp_info(end, _BUSY_TIME) / 1e6


def _of_tcp_info(end: socket.socket, field: slice) -> int:
    return int.from_bytes(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)[field], sys.byteorder)
