"""A small HTTP server for a few pages, which no client can keep busy.

A connection has one request, with LIMIT_S to send it and LIMIT_S to take the answer. There are at most MAX_OPEN; one
more ends the oldest, so that idle ones never keep Prometheus or a browser out. Pages are made one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple

LIMIT_S = 5.0
MAX_OPEN = 32
MAX_HEAD_BYTES = 8192  # request line and header fields
_BACKLOG = 128
_NO_CLIENT = (asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)  # slow, gone, not HTTP


class Request(NamedTuple):
    """A GET, as its client writes it."""

    path: str  # without what follows a `?`
    host: str  # the server's name in the client's address, with the port; empty where the client sends none


class Response(NamedTuple):
    """`fields`: further lines of the head."""

    content_type: str
    body: bytes
    status: str = "200 OK"
    fields: tuple[str, ...] = ()


class HttpServer:
    """Answers from a thread of its own, from its construction until `close`. `answer` must not raise."""

    def __init__(self, host: str, port: int, answer: Callable[[Request], Response]) -> None:
        """Raises OSError if the address is taken or is not of this machine. Port 0: the system chooses one."""
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self._socket = socket.socket(family)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
            self._socket.listen(_BACKLOG)
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        self._respond = answer
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # the oldest first
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="dynamix-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Free the port and end all connections."""
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, sock=self._socket, limit=MAX_HEAD_BYTES, backlog=_BACKLOG)
        await self._closing.wait()
        server.close()
        tasks = tuple(self._open)
        for task in tasks:
            self._end(task)
        if tasks:
            await asyncio.wait(tasks)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_OPEN:
            self._end(next(iter(self._open)))
        task = self._loop.create_task(self._answer(reader, writer))
        self._open[task] = writer
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        if (writer := self._open.pop(task, None)) is not None:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=0)  # `drain` waits until all is sent
        with contextlib.suppress(OSError, *_NO_CLIENT):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
            writer.write(_raw(self._response(head)))
            await asyncio.wait_for(writer.drain(), LIMIT_S)

    def _response(self, head: bytes) -> Response:
        method, _, rest = head.partition(b" ")
        if method != b"GET":
            return Response("text/plain", b"# use GET\n", "405 Method Not Allowed")
        host = re.search(rb"\r\nhost:[ \t]*([^\r]*)", head, re.IGNORECASE)
        path = rest.partition(b" ")[0].partition(b"?")[0]
        return self._respond(Request(path.decode("latin-1"), host[1].decode("latin-1").strip() if host else ""))


def _raw(response: Response) -> bytes:
    fields = (f"Content-Type: {response.content_type}", f"Content-Length: {len(response.body)}", *response.fields)
    head = "\r\n".join((f"HTTP/1.1 {response.status}", *fields, "Connection: close"))
    return f"{head}\r\n\r\n".encode() + response.body
