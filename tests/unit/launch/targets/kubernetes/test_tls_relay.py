"""A relay passes on all bytes in both directions, and says at its end which side has ended."""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dynamix_ps.launch.targets.kubernetes.job_secret import NAME, tls_context
from dynamix_ps.launch.targets.kubernetes.tls_relay import TlsRelay
from tests.job_secret import job_secret

pytestmark = pytest.mark.timeout(30)

WAITS = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
MUCH = os.urandom(1 << 16) * 48  # more than pipes, sockets and the relay hold together


class Rig:
    """A relay in a thread; `there` is the other end of its connection, `into` and `out_of` those of its descriptors."""

    def __init__(self, there: ssl.SSLSocket, here: ssl.SSLSocket) -> None:
        self.there = there
        reading, self.into = os.pipe()
        self.out_of, writing = os.pipe()
        self.ended: list[str] = []
        self._own = [reading, writing]
        self.thread = run(lambda: self.ended.append(TlsRelay(here, reading, writing).run()))

    def close(self) -> None:
        for descriptor in (self.into, self.out_of):
            if descriptor >= 0:
                os.close(descriptor)
        self.there.close()
        self.thread.join()
        for descriptor in self._own:
            os.close(descriptor)

    def end_input(self) -> None:
        os.close(self.into)
        self.into = -1

    def end_output(self) -> None:
        os.close(self.out_of)
        self.out_of = -1


def run(what: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=what)
    thread.start()
    return thread


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    job_secret(tmp_path / "own")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = socket.create_connection(listener.getsockname())
        one, _ = listener.accept()
    secured: list[ssl.SSLSocket] = []
    server = tls_context(tmp_path / "own", server=True)
    accepting = run(lambda: secured.append(server.wrap_socket(one, server_side=True)))
    there = tls_context(tmp_path / "own", server=False).wrap_socket(other, server_hostname=NAME)
    accepting.join()
    made = Rig(there, secured[0])
    yield made
    made.close()


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read_all(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size and (part := os.read(descriptor, 1 << 16)):
        data += part
    return data


def receive_all(connection: ssl.SSLSocket) -> bytes:
    data = b""
    while part := connection.recv(1 << 16):
        data += part
    return data


def test_much_goes_both_ways_at_once(rig: Rig) -> None:
    got: list[bytes] = []

    writing = run(lambda: write_all(rig.into, MUCH))
    reading = run(lambda: got.append(read_all(rig.out_of, len(MUCH))))
    received = b""
    rig.there.setblocking(False)
    left = memoryview(MUCH)
    while len(received) < len(MUCH) or left:
        select.select([rig.there], [rig.there] if left else [], [])
        if left:
            with suppress(*WAITS):
                left = left[rig.there.send(left[: 1 << 14]) :]
        with suppress(*WAITS):
            received += rig.there.recv(1 << 16)
    writing.join()
    reading.join()
    assert received == MUCH
    assert got == [MUCH]


def test_at_the_end_of_this_side_all_of_it_arrives_although_the_other_one_has_said_more_than_was_read(rig: Rig) -> None:
    rig.there.setblocking(False)
    with suppress(*WAITS):
        while True:
            rig.there.send(bytes(1 << 14))
    rig.there.setblocking(True)
    writing = run(lambda: (write_all(rig.into, MUCH), rig.end_input()))
    assert receive_all(rig.there) == MUCH
    writing.join()
    rig.there.close()
    rig.thread.join()
    assert rig.ended == [""]


def test_at_the_end_of_the_other_side_all_of_it_is_written(rig: Rig) -> None:
    writing = run(lambda: (rig.there.sendall(MUCH), socket.socket.shutdown(rig.there, socket.SHUT_WR)))
    assert read_all(rig.out_of, len(MUCH)) == MUCH
    writing.join()
    rig.thread.join()
    assert rig.ended == ["the other end has closed the connection"]


def test_what_comes_after_a_reader_has_gone_is_dropped_and_what_is_said_still_goes(rig: Rig) -> None:
    rig.end_output()
    rig.there.sendall(MUCH)
    os.write(rig.into, b"last words")
    rig.end_input()
    assert receive_all(rig.there) == b"last words"


def test_a_connection_that_breaks_is_told(rig: Rig) -> None:
    descriptor = rig.there.detach()
    with socket.socket(fileno=descriptor) as plain:
        plain.sendall(b"this is not TLS")
        rig.thread.join()
    assert rig.ended[0].startswith("TLS: ")
