"""The small HTTP server: what it answers, and clients that keep it waiting."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from dynamix_ps.report import http_server
from dynamix_ps.report.http_server import MAX_HEAD_BYTES, MAX_OPEN, HttpServer, Request, Response

PAGE = b"x" * 20_000_000  # more than the buffers of the kernel hold
GET = b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n"


def respond(request: Request) -> Response:
    return Response("text/plain", PAGE) if request.path == "/page" else Response("text/plain", request.host.encode())


@pytest.fixture
def server() -> Iterator[HttpServer]:
    started = HttpServer("127.0.0.1", 0, respond)
    yield started
    started.close()


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def answer(server: HttpServer, request: bytes) -> bytes:
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


def test_the_page_arrives_whole(server: HttpServer) -> None:
    head, _, body = answer(server, GET).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 20000000\r\n")
    assert body == PAGE


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"POST /page HTTP/1.1\r\n\r\n", b"405"),
        (b"\x00\xff\r\n\r\n", b"405"),
        (b"GET /page?name[]=x HTTP/1.0\r\n\r\n", b"200"),
    ],
)
def test_other_requests_get_their_status(server: HttpServer, request_head: bytes, status: bytes) -> None:
    assert answer(server, request_head).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    ("field", "host"),
    [(b"Host: a:1", b"a:1"), (b"x: y\r\nhOST:a ", b"a"), (b"Host-Name: a", b""), (b"x: Host: a", b"")],
)
def test_the_host_is_the_one_of_its_field(server: HttpServer, field: bytes, host: bytes) -> None:
    answered = answer(server, b"GET / HTTP/1.1\r\n" + field + b"\r\n\r\n")
    assert answered.partition(b"\r\n\r\n")[2] == host


def test_a_request_without_end_is_dropped(server: HttpServer) -> None:
    assert answer(server, b"x" * (2 * MAX_HEAD_BYTES)) == b""


def test_idle_clients_keep_nobody_out(server: HttpServer) -> None:
    idle = [connect(server) for _ in range(3 * MAX_OPEN)]
    assert answer(server, GET).endswith(PAGE)
    assert read(idle[0]) == b"", "the oldest have ended"
    for connection in idle:
        connection.close()


@pytest.mark.parametrize("request_head", [b"", GET[:5], GET], ids=["silent", "half a request", "reads no answer"])
def test_slow_clients_are_dropped(server: HttpServer, monkeypatch: pytest.MonkeyPatch, request_head: bytes) -> None:
    monkeypatch.setattr(http_server, "LIMIT_S", 0.1)
    with connect(server) as slow:
        slow.sendall(request_head)
        answer(server, GET)  # does not hang; the slow client came before and is open by now
        while server._open:
            answer(server, GET)
        assert len(read(slow)) < len(PAGE)


def test_a_closed_server_ends_its_connections() -> None:
    server = HttpServer("127.0.0.1", 0, respond)
    with connect(server) as idle:
        answer(server, GET)
        server.close()
        assert read(idle) == b""
    assert not server._thread.is_alive()
