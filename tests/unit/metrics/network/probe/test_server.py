"""The server of the probe: what each client gets, and what happens to clients that misbehave."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.probe import client as probe_client
from dynamix_ps.metrics.network.probe import server as probe_server
from dynamix_ps.metrics.network.probe.client import ProbeSource
from dynamix_ps.metrics.network.probe.listening_socket import ListeningSocket
from dynamix_ps.metrics.network.probe.owner import Namespaces, read_owner, role_name
from dynamix_ps.metrics.network.probe.protocol import WatchedProcess
from dynamix_ps.metrics.network.probe.server import Probe, _Client
from tests.launching import environment, wait_for
from tests.probes import FakeCollector, connect, connection_of, probe_in_thread


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that wait as long as a busy machine takes: how long they do is for test_client.py to check."""
    monkeypatch.setattr(probe_client, "LIMIT_S", 30.0)


def test_a_process_reads_its_own_connections(path: Path, collector: FakeCollector) -> None:
    collector.extra = (connection_of(1, 5.0),)
    source = ProbeSource(str(path))
    first, second = source.read(), source.read()
    assert first.source == "ebpf"
    assert first.lost == 3
    assert [connection.pid for connection in first.connections] == [os.getpid()]
    assert second.connections[0].bytes_out == first.connections[0].bytes_out + 1000
    assert second.taken_s >= first.taken_s
    source.close()
    wait_for(lambda: not collector.watched, "the process to be forgotten")
    assert source.read().connections[0].bytes_out == 1000  # it may come back
    source.close()


def test_a_process_is_watched_until_its_last_client_has_left(path: Path, collector: FakeCollector) -> None:
    one, other = ProbeSource(str(path)), ProbeSource(str(path))
    one.read()
    other.read()
    one.close()
    assert other.read().connections
    other.close()
    wait_for(lambda: not collector.watched, "the process to be forgotten")


def test_all_tells_who_they_are(path: Path) -> None:
    source = ProbeSource(str(path))
    snapshot = source.ask("all")
    assert [process.pid for process in snapshot.processes] == [os.getpid()]
    assert snapshot.host == socket.gethostname()
    assert snapshot.cpu_s > 0
    source.close()


def test_users_see_each_other_only_if_one_is_root(tmp_path: Path, collector: FakeCollector) -> None:
    """The answer by uid, without the sockets that would need other users."""
    with ListeningSocket(str(tmp_path / "p.sock")) as listening:
        probe = Probe(collector, listening)
        ends = socket.socketpair()
        probe._clients = {
            _Client(ends[0], WatchedProcess(pid, "", "", ""), uid, -1) for pid, uid in ((11, 0), (12, 1000), (13, 1001))
        }
        for pid in (11, 12, 13):
            collector.watch(pid)
        snapshots = {client.uid: probe._all(client) for client in probe._clients}
        probe._clients = set()
        probe.close()
    for end in ends:
        end.close()
    for told in ("processes", "connections"):
        seen = {uid: {one.pid for one in getattr(snapshot, told)} for uid, snapshot in snapshots.items()}
        assert seen == {0: {11, 12, 13}, 1000: {12}, 1001: {13}}


def test_a_collector_that_cannot_read_is_an_answer(path: Path, collector: FakeCollector) -> None:
    source = ProbeSource(str(path))
    collector.broken = "the map is gone"
    with pytest.raises(SourceError, match="cannot answer: the map is gone"):
        source.read()
    collector.broken = ""
    assert source.read().connections


@pytest.mark.parametrize(
    ("request_line", "reason"),
    [
        (b"\n", "is not one JSON object"),
        (b"GET / HTTP/1.1\n", "is not one JSON object"),
        (b'{"v":9,"ask":"mine"}\n', "this probe speaks version 1"),
        (b'{"v":1,"ask":"passwords"}\n', "expected one of mine, all"),
    ],
)
def test_a_wrong_request_gets_the_reason(path: Path, request_line: bytes, reason: str) -> None:
    with connect(path) as connection:
        connection.sendall(request_line)
        assert reason in json.loads(connection.recv(1000))["error"]


@pytest.mark.parametrize(
    "flood", [b"x" * 100_000, b'{"v":1,"ask":"mine"}\n' * 1000, b"\n" * 5000], ids=["long", "many", "empty"]
)
def test_who_floods_is_dropped_and_the_others_do_not_notice(path: Path, flood: bytes) -> None:
    source = ProbeSource(str(path))
    source.read()
    with connect(path) as connection, pytest.raises((ConnectionError, BrokenPipeError)):
        for _ in range(10_000):
            connection.sendall(flood)
    assert source.read().connections
    source.close()


@pytest.mark.parametrize("said", [b'{"v":1,"ask":"mine"}\n' * 2, b"x" * 257], ids=["two at once", "no end"])
def test_who_says_too_much_is_dropped_at_once(tmp_path: Path, collector: FakeCollector, said: bytes) -> None:
    with probe_in_thread(tmp_path / "p.sock", collector, Clock()), connect(tmp_path / "p.sock") as connection:
        connection.sendall(said)
        with contextlib.suppress(ConnectionResetError):  # it did not even read all
            assert connection.recv(1) == b""


def test_who_asks_without_pause_is_dropped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_server, "MAX_REQUESTS_PER_S", 3)
    monkeypatch.setattr(probe_server, "SWEEP_S", 3600.0)
    source = ProbeSource(str(path))
    for _ in range(3):
        source.read()
    with pytest.raises(SourceError, match="closed the connection"):
        source.read()
    assert source.read().connections
    source.close()


@pytest.mark.parametrize("half", [b'{"v":1', b""])
def test_who_keeps_it_waiting_is_dropped_and_who_is_only_quiet_is_not(
    tmp_path: Path, collector: FakeCollector, half: bytes
) -> None:
    clock = Clock()
    with probe_in_thread(tmp_path / "p.sock", collector, clock), connect(tmp_path / "p.sock") as slow:
        slow.sendall(half)
        other = ProbeSource(str(tmp_path / "p.sock"))
        other.read()
        for _ in range(8):
            clock.now_s += 1.0
            other.read()
            other.read()  # the first may have been answered before the sweep saw the new time
        if half:
            assert slow.recv(10) == b""
        else:
            slow.sendall(b'{"v":1,"ask":"mine"}\n')
            assert slow.recv(10)
        other.close()


def test_who_never_takes_its_reply_is_dropped(tmp_path: Path, collector: FakeCollector) -> None:
    clock = Clock()
    collector.extra = tuple(connection_of(os.getpid(), 1.0) for _ in range(5000))  # more than the kernel holds for it
    with probe_in_thread(tmp_path / "p.sock", collector, clock) as probe, connect(tmp_path / "p.sock") as greedy:
        greedy.sendall(b'{"v":1,"ask":"mine"}\n')
        wait_for(lambda: any(client.unsent for client in set(probe._clients)), "the reply to get stuck")
        collector.extra = ()  # one large reply is enough
        other = ProbeSource(str(tmp_path / "p.sock"))
        assert len(other.read().connections) == 1
        for _ in range(8):
            clock.now_s += 1.0
            other.read()
            other.read()
        # the other has its reply before the probe notes that it was sent
        wait_for(lambda: [client.unsent.nbytes for client in set(probe._clients)] == [0], "only the other to be left")
        other.close()


def test_there_is_room_for_so_many_clients(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_server, "MAX_CLIENTS_PER_USER", 2)
    sources = [ProbeSource(str(path)) for _ in range(3)]
    sources[0].read()
    sources[1].read()
    with pytest.raises(SourceError, match="serves 2 clients of user"):
        sources[2].read()
    sources[0].close()
    wait_for(lambda: _answers(sources[2]), "the place that became free")
    for source in sources:
        source.close()


def _answers(source: ProbeSource) -> bool:
    try:
        return bool(source.read().connections)
    except SourceError:
        return False


def test_who_cannot_be_watched_is_told_so(path: Path, collector: FakeCollector) -> None:
    def full(pid: int) -> None:
        raise SourceError("the map is full")

    collector.watch = full  # type: ignore[method-assign]
    with pytest.raises(SourceError, match="cannot answer: the map is full"):
        ProbeSource(str(path)).read()
    del collector.watch
    assert ProbeSource(str(path)).read().connections


def test_who_is_in_a_foreign_pid_namespace_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Foreign:
        size = 12

        def unpack(self, data: bytes) -> tuple[int, int, int]:
            return 0, 0, 0

    monkeypatch.setattr(probe_server, "_PEER", Foreign())
    with pytest.raises(SourceError, match="pid namespace that the probe cannot see"):
        ProbeSource(str(path)).read()


def test_a_process_that_ended_is_forgotten_though_its_child_still_has_the_socket(
    path: Path, collector: FakeCollector
) -> None:
    program = """
import os, sys
from dynamix_ps.metrics.network.probe.client import ProbeSource
source = ProbeSource(sys.argv[1])
source.read()
if os.fork():
    os._exit(0)
sys.stdin.read()
"""
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment()) as process:
        process.wait()
        wait_for(lambda: process.pid not in collector.watched, "the probe to forget it")
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize(("private", "mode"), [(False, 0o666), (True, 0o600)])
def test_a_stale_socket_is_replaced_and_the_mode_says_who_may_connect(tmp_path: Path, private: bool, mode: int) -> None:
    path = tmp_path / "new" / "p.sock"
    path.parent.mkdir()
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    umask = os.umask(0o027)
    try:
        with ListeningSocket(str(path), private):
            assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        assert os.umask(umask) == 0o027
    assert not path.exists()


def test_a_path_has_one_probe(tmp_path: Path) -> None:
    path = str(tmp_path / "p.sock")
    with ListeningSocket(path):
        with pytest.raises(EnvironmentNotReady, match=r"another probe serves .*p\.sock already"):
            ListeningSocket(path).__enter__()
        assert os.path.exists(path)
    with ListeningSocket(path):
        pass


@pytest.mark.parametrize(
    ("name", "reason"), [("file", "is not a socket"), ("x" * 200, "at most 107"), ("file/p", "choose a path")]
)
def test_a_path_that_cannot_be_used(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(EnvironmentNotReady, match=reason):
        ListeningSocket(str(tmp_path / name)).__enter__()
    assert (tmp_path / "file").read_text() == "precious"


def test_the_role_of_a_process() -> None:
    assert role_name({"DYNAMIX_ROLE_NAME": "server-1", "DMLC_ROLE": "server"}) == "server-1"
    assert role_name({"DMLC_ROLE": "worker", "DMLC_WORKER_ID": "3"}) == "worker-3"
    assert role_name({"DMLC_ROLE": "scheduler", "DMLC_WORKER_ID": "3"}) == "scheduler"
    assert role_name({}) == ""
    assert role_name({"DYNAMIX_ROLE_NAME": "\x1b[31m" + "x" * 99}) == "?[31m".replace("[", "?") + "x" * 59


def test_nothing_is_told_about_a_process_of_somebody_else(tmp_path: Path) -> None:
    namespaces, inode = Namespaces(tmp_path), os.stat("/proc/self/ns/net").st_ino
    assert read_owner(os.getpid(), os.getuid(), namespaces).netns == ""  # the one of the probe
    namespaces._own = 1
    assert read_owner(os.getpid(), os.getuid(), namespaces).netns == f"net:[{inode}]"
    (tmp_path / "blue").symlink_to("/proc/self/ns/net")
    assert read_owner(os.getpid(), os.getuid(), namespaces).netns == "blue"
    assert read_owner(os.getpid(), os.getuid() + 1, namespaces) == WatchedProcess(os.getpid(), "", "", "")


def test_misbehaviour_is_told_once_in_a_second(
    tmp_path: Path, collector: FakeCollector, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    clock.now_s = 10.0
    with ListeningSocket(str(tmp_path / "p.sock")) as listening:
        probe = Probe(collector, listening, clock)
        clock.now_s = 11.0
        for _ in range(100):
            probe._log("x")
        probe.close()
    assert capsys.readouterr().out == "x\n"
