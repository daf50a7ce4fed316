"""The HTTP server of the metrics: what it answers, and clients that keep it waiting."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from dynamix_ps.report import metrics_server
from dynamix_ps.report.metrics_server import MAX_HEAD_BYTES, MAX_OPEN, MetricsServer

PAGE = b"x" * 20_000_000  # more than the buffers of the kernel hold
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    started = MetricsServer("127.0.0.1", 0, lambda: PAGE, "text/plain")
    yield started
    started.close()


def connect(server: MetricsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def answer(server: MetricsServer, request: bytes) -> bytes:
    """All that comes until the server closes; nothing if it resets the connection."""
    with connect(server) as connection:
        connection.sendall(request)
        return read(connection)


def read(connection: socket.socket) -> bytes:
    received = b""
    try:
        while data := connection.recv(1 << 20):
            received += data
    except ConnectionResetError:
        pass
    return received


def test_the_page_arrives_whole(server: MetricsServer) -> None:
    head, _, body = answer(server, GET).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 20000000\r\n")
    assert body == PAGE


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET /passwords HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"\x00\xff\r\n\r\n", b"405"),
        (b"GET /metrics?name[]=x HTTP/1.0\r\n\r\n", b"200"),
    ],
)
def test_other_requests_get_their_status(server: MetricsServer, request_head: bytes, status: bytes) -> None:
    assert answer(server, request_head).startswith(b"HTTP/1.1 " + status)


def test_a_request_without_end_is_dropped(server: MetricsServer) -> None:
    assert answer(server, b"x" * (2 * MAX_HEAD_BYTES)) == b""


def test_idle_clients_keep_nobody_out(server: MetricsServer) -> None:
    idle = [connect(server) for _ in range(3 * MAX_OPEN)]
    assert answer(server, GET).endswith(PAGE)
    assert read(idle[0]) == b"", "the oldest have ended"
    for connection in idle:
        connection.close()


@pytest.mark.parametrize("request_head", [b"", GET[:5], GET], ids=["silent", "half a request", "reads no answer"])
def test_slow_clients_are_dropped(server: MetricsServer, monkeypatch: pytest.MonkeyPatch, request_head: bytes) -> None:
    monkeypatch.setattr(metrics_server, "LIMIT_S", 0.1)
    with connect(server) as slow:
        slow.sendall(request_head)
        answer(server, GET)  # does not hang; the slow client came before and is open by now
        while server._open:
            answer(server, GET)
        assert len(read(slow)) < len(PAGE)


def test_a_closed_server_ends_its_connections() -> None:
    server = MetricsServer("127.0.0.1", 0, lambda: PAGE, "text/plain")
    with connect(server) as idle:
        answer(server, GET)
        server.close()
        assert read(idle) == b""
    assert not server._thread.is_alive()
