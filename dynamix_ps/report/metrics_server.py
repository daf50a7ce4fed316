"""A small HTTP server for one page of metrics, which no client can keep busy.

A connection has one request, and LIMIT_S from its beginning to the end of the answer. There are at most MAX_OPEN; one
more ends the oldest, so that idle ones never keep Prometheus out.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable

LIMIT_S = 5.0
MAX_OPEN = 32
MAX_HEAD_BYTES = 8192  # request line and header fields
_BACKLOG = 128
_NO_CLIENT = (asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)  # slow, gone, not HTTP


class MetricsServer:
    """Serves a page at `/metrics` from a thread of its own, from its construction until `close`."""

    def __init__(self, host: str, port: int, page: Callable[[], bytes], content_type: str) -> None:
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
        self._page = page
        self._content_type = content_type
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # the oldest first
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="dynamix-metrics", daemon=True)
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
            await asyncio.wait_for(self._exchange(reader, writer), LIMIT_S)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method != b"GET":
            writer.write(self._response("405 Method Not Allowed", b"# use GET\n"))
        elif path not in (b"/metrics", b"/"):
            writer.write(self._response("404 Not Found", b"# the metrics are at /metrics\n"))
        else:
            writer.write(self._response("200 OK", self._page()))
        await writer.drain()

    def _response(self, status: str, body: bytes) -> bytes:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {self._content_type}\r\nContent-Length: {len(body)}\r\n"
        return f"{head}Connection: close\r\n\r\n".encode() + body
