"""The client of the probe: any answer or silence gives a reply or an exact error, also after a fork."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.probe import client as probe_client
from dynamix_ps.metrics.network.probe.client import ProbeSource
from dynamix_ps.metrics.network.probe.protocol import MAX_REPLY_BYTES
from tests.launching import wait_for
from tests.probes import FakeCollector, connect, connection_of, false_probe, probe_in_thread


def test_a_reply_in_many_parts_arrives_whole(
    path: Path, collector: FakeCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_client, "LIMIT_S", 60.0)
    collector.extra = tuple(connection_of(os.getpid(), float(number)) for number in range(5000))
    source = ProbeSource(str(path))
    assert [c.bytes_out for c in source.read().connections[1:]] == [float(number) for number in range(5000)]
    source.close()


def say(data: bytes) -> object:
    return lambda connection: connection.sendall(data)


def hang_up(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.shutdown(socket.SHUT_RDWR)


def pour(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"x" * (1 << 16))


def drip(connection: socket.socket) -> None:
    for _ in range(100):
        connection.sendall(b"x")
        time.sleep(0.05)  # each byte well within the limit
    connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (drip, "did not answer within 0.5 s"),
        (say(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "sent more than one line for a reply"),
        (say(b"\xff\xfe\n"), "is not one JSON object"),
        (say(b"{}\n"), "speaks version None"),
        (say(b'{"v":1'), "did not answer within 0.5 s"),
        (lambda connection: None, "did not answer within 0.5 s"),
        (hang_up, "closed the connection without a reply"),
        (lambda c: (c.sendall(b'{"v"'), hang_up(c)), "closed the connection inside a reply"),
        (pour, "sent a line of more than|did not answer within"),
    ],
    ids=["drop by drop", "http", "binary", "empty", "half", "nothing", "end", "half-end", "endless"],
)
def test_whatever_answers_ends_in_an_exact_error(tmp_path: Path, answer: object, reason: str) -> None:
    with false_probe(tmp_path / "p.sock", answer):  # type: ignore[arg-type]
        source = ProbeSource(str(tmp_path / "p.sock"))
        with pytest.raises(SourceError, match=reason) as caught:
            source.read()
        assert str(caught.value).startswith(f"network probe {tmp_path}/p.sock: ")
        assert source._socket is None


def test_a_line_without_end_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_client, "LIMIT_S", 60.0)
    source = ProbeSource(str(tmp_path / "p.sock"))
    with (
        false_probe(tmp_path / "p.sock", pour),
        pytest.raises(SourceError, match=f"more than {MAX_REPLY_BYTES} bytes"),
    ):
        source.read()


def test_what_was_said_unasked_is_not_taken_for_an_answer(tmp_path: Path, collector: FakeCollector) -> None:
    with probe_in_thread(tmp_path / "real.sock", collector), connect(tmp_path / "real.sock") as connection:
        connection.sendall(b'{"v":1,"ask":"mine"}\n')
        reply = connection.recv(10_000)
    second = threading.Event()

    def twice(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(reply)
        second.wait(10)
        connection.sendall(reply)

    with false_probe(tmp_path / "p.sock", twice):
        source = ProbeSource(str(tmp_path / "p.sock"))
        assert source.read().connections
        second.set()
        assert source._socket is not None
        source._socket.settimeout(10)
        source._socket.recv(1, socket.MSG_PEEK)
        with pytest.raises(SourceError, match="sent data without a request"):
            source.read()


def test_a_socket_that_is_not_there_and_one_that_nobody_serves(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no such socket"):
        ProbeSource(str(tmp_path / "none")).read()
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "left"))
    left.close()
    with pytest.raises(SourceError, match="nobody listens there any more"):
        ProbeSource(str(tmp_path / "left")).read()
    with pytest.raises(SourceError, match="too long"):
        ProbeSource("/x" * 100).read()


def test_a_socket_whose_queue_is_full(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "full"))
        listening.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for connection in waiting:
            connection.setblocking(False)
            connection.connect_ex(str(tmp_path / "full"))
        with pytest.raises(SourceError, match="takes no more connections"):
            ProbeSource(str(tmp_path / "full")).read()
        for connection in waiting:
            connection.close()


def test_a_forked_child_asks_for_itself(path: Path, collector: FakeCollector) -> None:
    source = ProbeSource(str(path))
    source.read()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        found = {connection.pid for connection in source.read().connections}
        os.write(writing, b"own" if found == {os.getpid()} else repr(found).encode())
        source.close()
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        assert answer.read() == b"own"
    os.waitpid(child, 0)
    assert [connection.pid for connection in source.read().connections] == [os.getpid()]
    source.close()


def test_the_probe_notices_the_end_while_a_forked_child_has_a_copy(path: Path, collector: FakeCollector) -> None:
    source = ProbeSource(str(path))
    source.read()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        source.close()
        wait_for(lambda: not collector.watched, "the process to be forgotten")
    finally:
        os.close(writing)
        os.waitpid(child, 0)
        os.close(reading)
