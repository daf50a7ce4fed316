"""Helpers of the probe tests: a probe without privilege, in a thread or as a process, and faulty probes."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from dynamix_ps.metrics.network.connection import Connection, SourceError
from dynamix_ps.metrics.network.probe.listening_socket import ListeningSocket
from dynamix_ps.metrics.network.probe.process import run_probe
from dynamix_ps.metrics.network.probe.server import Probe
from tests.launching import ROOT, begun, environment, read_until


class FakeCollector:
    """One connection per watched process; each reading finds 1000 more bytes on it."""

    def __init__(self) -> None:
        self.watched: dict[int, int] = {}
        self.lost = 3
        self.readings = 0
        self.broken = ""
        self.extra: tuple[Connection, ...] = ()

    def watch(self, pid: int) -> None:
        assert pid not in self.watched
        self.watched[pid] = 0

    def unwatch(self, pid: int) -> None:
        del self.watched[pid]

    def read(self, pid: int = 0) -> tuple[Connection, ...]:
        if self.broken:
            raise SourceError(self.broken)
        self.readings += 1
        for each in self.watched:
            self.watched[each] += 1000
        known = (*(connection_of(each, float(sent)) for each, sent in self.watched.items()), *self.extra)
        return tuple(connection for connection in known if pid in (0, connection.pid))

    def close(self) -> None:
        self.watched.clear()


def connection_of(pid: int, sent: float) -> Connection:
    return Connection(f"{pid}", pid, 1, "10.0.0.1:1000", "10.0.0.2:2000", sent, 0.0, 0.0)


@contextlib.contextmanager
def probe_in_thread(path: Path, collector: FakeCollector, clock: Callable[[], float] | None = None) -> Iterator[Probe]:
    with ListeningSocket(str(path)) as listening:
        probe = Probe(collector, listening, clock) if clock else Probe(collector, listening)
        thread = threading.Thread(target=probe.serve, name="probe")
        thread.start()
        try:
            yield probe
        finally:
            probe.stop()
            thread.join(10)
            assert not thread.is_alive()
            probe.close()


@contextlib.contextmanager
def probe_process(path: Path, module: str = "tests.probes", private: bool = False) -> Iterator[subprocess.Popen[str]]:
    """A probe that answers; killed with the test. `tests.probes` is one with a FakeCollector."""
    argv = [sys.executable, "-m", module, "--socket", str(path), *(["--private"] if private else [])]
    process = begun(argv, ROOT, environment())
    try:
        read_until(process, "ready ")
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def false_probe(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """Listens at the path, and gives every connection to `answer` in a thread of its own."""
    ended = threading.Event()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    listening.listen(8)

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            answer(connection)
            ended.wait()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        listening.close()
        os.unlink(path)


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(10)
    connection.connect(str(path))
    return connection


if __name__ == "__main__":
    sys.exit(run_probe(sys.argv[2], FakeCollector, private="--private" in sys.argv))
