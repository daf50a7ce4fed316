"""The eBPF collector on real connections: exact, of the right process, and gone with its own process."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.config import Cluster, Worker
from dynamix_ps.launch.ports import choose_ports
from dynamix_ps.metrics.network import ebpf
from dynamix_ps.metrics.network.bcc_loader import load_bcc
from dynamix_ps.metrics.network.btf import Btf
from dynamix_ps.metrics.network.connection import Connection, SourceError
from dynamix_ps.metrics.network.ebpf import CLOSED_KEPT_S, STATE_CHANGES, EbpfCollector
from tests.integration.tcp_pairs import WAYS, connect, listener, name, pair

pytestmark = pytest.mark.timeout(90)

PROGRAMS = len(STATE_CHANGES) + 4  # use of a connection (2), refresh, adopt
_BUSY_TIME = slice(168, 176)  # tcpi_busy_time in struct tcp_info, include/uapi/linux/tcp.h


@pytest.fixture(scope="module")
def loaded() -> Iterator[EbpfCollector]:
    try:
        collector = EbpfCollector()
    except SourceError as error:
        pytest.skip(f"eBPF: {error}")
    yield collector
    collector.close()


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
        assert dialled.retransmits == 0
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
    monkeypatch.setattr(ebpf, "borrowed_sockets", lambda pid: iter(()))
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
    port, _ = choose_ports(Cluster(workers=(Worker(),)), random.Random())  # one that no outgoing connection can take
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
        assert before_s <= dialled.busy_s <= after_s


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


def test_kernels_without_tracepoints_of_lengths(loaded: EbpfCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 6.3: accepted ends are noticed when they read."""
    has_tracepoint = Btf.has_tracepoint
    monkeypatch.setattr(Btf, "has_tracepoint", lambda btf, name: "length" not in name and has_tracepoint(btf, name))
    older = EbpfCollector()
    try:
        older.watch(os.getpid())
        with pair() as ends:
            ends.send(there=1234, back=56)
            dialled, accepted = ends.of(older.read())
            assert (dialled.bytes_out, accepted.bytes_in, accepted.bytes_out) == (1234, 1234, 56)
    finally:
        older.close()


def test_a_kernel_without_tracepoints_is_refused(loaded: EbpfCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Btf, "has_tracepoint", lambda btf, name: False)
    with pytest.raises(SourceError, match="no tracepoint inet_sock_set_state and no tcp_rcv_space_adjust"):
        EbpfCollector()


def test_what_does_not_fit_is_counted(monkeypatch: pytest.MonkeyPatch, loaded: EbpfCollector) -> None:
    monkeypatch.setattr(ebpf, "_MAX_CONNECTIONS", 2)
    small = EbpfCollector()
    try:
        small.watch(os.getpid())
        with listener() as listening:
            pairs = [connect(listening) for _ in range(3)]
            for ends in pairs:
                ends.send(there=1, back=1)
            assert len(small.read()) == 2
            assert small.lost > 0
            for ends in pairs:
                ends.close()
    finally:
        small.close()


def test_too_many_processes_are_refused(monkeypatch: pytest.MonkeyPatch, loaded: EbpfCollector) -> None:
    monkeypatch.setattr(ebpf, "_MAX_PROCESSES", 1)
    small = EbpfCollector()
    try:
        small.watch(os.getpid())
        with pytest.raises(SourceError, match="process 1 cannot be watched, 1 are"):
            small.watch(1)
    finally:
        small.close()


@pytest.mark.parametrize("blind_to_the_next", (True, False))
def test_a_missed_end_is_found_and_counted_as_lost(loaded: EbpfCollector, blind_to_the_next: bool) -> None:
    """Detached for a moment, it does not see that a connection closes and its socket becomes another one."""
    collector = EbpfCollector()
    try:
        collector.watch(os.getpid())
        with listener() as listening:
            ends = connect(listening)
            ends.send(there=30, back=4)
            collector.read()
            _detach(collector, STATE_CHANGES)
            ends.close()
            if blind_to_the_next:
                later = connect(listening)
            _attach(collector, STATE_CHANGES)
            if not blind_to_the_next:
                later = connect(listening)
            later.send(there=500, back=0)
            assert {(each.bytes_out, each.closed) for each in collector.read()} >= {(30, True), (4, True)}
            assert collector.lost == 2
            later.send(there=1, back=0)
            dialled, accepted = later.of(collector.read())
            assert (dialled.bytes_out, accepted.bytes_in) == (501, 501)
            later.close()
    finally:
        collector.close()


@pytest.mark.parametrize("left", STATE_CHANGES)
def test_one_of_the_programs_that_see_an_end_is_enough(loaded: EbpfCollector, left: str) -> None:
    """The kernel leaves one out while it is running on that CPU already."""
    collector = EbpfCollector()
    try:
        _detach(collector, [name for name in STATE_CHANGES if name != left])
        collector.watch(os.getpid())
        with listener() as listening:
            for size in range(1, 20):
                ends = connect(listening)
                ends.send(there=size, back=0)
                ends.close()
        seen = sorted(each.bytes_out for each in collector.read() if each.closed)
        assert seen == [0] * 19 + list(range(1, 20))
        assert collector.lost == 0
    finally:
        collector.close()


def _detach(collector: EbpfCollector, functions: Sequence[str]) -> None:
    for function in functions:
        collector._bpf.detach_raw_tracepoint(tp=function.encode())


def _attach(collector: EbpfCollector, functions: Sequence[str]) -> None:
    for function in functions:
        ebpf._attach(load_bcc(), collector._bpf, "inet_sock_set_state", function)


_HOLDER = """
import os, sys, time
from dynamix_ps.metrics.network.ebpf import EbpfCollector
collector = EbpfCollector()
collector.watch(os.getpid())
print("loaded", flush=True)
sys.stdin.read()
"""


def test_nothing_stays_in_the_kernel_after_a_kill(loaded: EbpfCollector) -> None:
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout and holder.stdout.readline() == b"loaded\n"
        held = _programs_of(holder.pid)
        assert len(held) == PROGRAMS
        assert held <= _programs()
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    _wait_until_gone(held)


def test_nothing_stays_in_the_kernel_after_close(loaded: EbpfCollector) -> None:
    before = _programs_of(os.getpid())
    collector = EbpfCollector()
    held = _programs_of(os.getpid()) - before
    assert len(held) == PROGRAMS
    collector.close()
    _wait_until_gone(held)


_IN_NAMESPACE = """
import os, socket
from dynamix_ps.metrics.network.ebpf import EbpfCollector
collector = EbpfCollector()
collector.watch(os.getpid())
listening = socket.create_server(("127.0.0.1", 0))
end = socket.create_connection(listening.getsockname())
accepted, _ = listening.accept()
end.sendall(b"x" * 1000)
accepted.recv(1000, socket.MSG_WAITALL)
print(os.getpid(), sorted((each.pid, each.bytes_out, each.bytes_in) for each in collector.read()))
"""


def test_works_in_a_pid_namespace(loaded: EbpfCollector) -> None:
    """As in a container: pids are those of the namespace."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", _IN_NAMESPACE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Operation not permitted" in done.stderr and "unshare" in done.stderr:
        pytest.skip(f"pid namespaces: {done.stderr.strip()}")
    assert done.stdout.strip() == "1 [(1, 0, 1000), (1, 1000, 0)]", done.stderr


_UNPRIVILEGED = """
import os
from dynamix_ps.metrics.network import ebpf
os.setuid(65534)
try:
    ebpf.EbpfCollector()
except ebpf.SourceError as error:
    print(error, "|", error.fix)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_without_permission_the_reason_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", _UNPRIVILEGED], capture_output=True, text=True, check=True)
    expected = "user 65534 lacks CAP_BPF and CAP_PERFMON | start the probe as root beforehand: sudo dynamix probe serve"
    assert (done.stdout.strip(), done.stderr) == (expected, "")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("int on_state(void *ctx) { return nonsense; }", "nonsense"),
        ("int on_state(u64 *ctx) { return *(int *)ctx[0]; }", "on_state"),
    ],
    ids=["compiler", "verifier"],
)
def test_errors_of_compiler_and_verifier_become_the_reason(
    loaded: EbpfCollector,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    program: str,
    reason: str,
) -> None:
    file = tmp_path / "program.c"
    file.write_text(program)
    monkeypatch.setattr(ebpf, "_SOURCE", file)
    with pytest.raises(SourceError, match=reason) as error:
        EbpfCollector()
    assert platform.release() in error.value.fix
    assert capfd.readouterr() == ("", "")


def test_loading_prints_nothing(loaded: EbpfCollector) -> None:
    done = subprocess.run([sys.executable, "-c", _HOLDER], input=b"", capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"loaded\n", b"")


def _busy_s(end: socket.socket) -> float:
    information = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return int.from_bytes(information[_BUSY_TIME], sys.byteorder) / 1e6


def _programs() -> set[int]:
    """Ids of all BPF programs in the kernel: bpf(BPF_PROG_GET_NEXT_ID)."""
    number = {"x86_64": 321, "aarch64": 280}[platform.machine()]
    call = ctypes.CDLL(None, use_errno=True).syscall
    attributes = (ctypes.c_uint32 * 4)()  # start, next
    found: set[int] = set()
    while call(number, 11, ctypes.byref(attributes), ctypes.sizeof(attributes)) == 0:
        found.add(attributes[1])
        attributes[0] = attributes[1]
    return found


def _programs_of(pid: int) -> set[int]:
    """Those the process holds descriptors of."""
    found: set[int] = set()
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one by which this folder was listed
            lines = file.read_text().splitlines()
            found.update(int(line.split()[1]) for line in lines if line.startswith("prog_id:"))
    return found


def _wait_until_gone(held: set[int]) -> None:
    """The kernel frees programs a moment after their last descriptor is closed."""
    for _ in itertools.takewhile(lambda _: held & _programs(), range(500)):
        time.sleep(0.01)
    assert not held & _programs()
