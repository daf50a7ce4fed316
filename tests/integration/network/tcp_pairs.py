"""Real TCP connections on loopback, for tests that compare counters with the bytes sent."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dynamix_ps.metrics.network.connection import Connection, endpoint

# How the two ends speak: family and address of the listener, address that is dialled.
WAYS = {
    "ipv4": (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
    "ipv6": (socket.AF_INET6, "::1", "::1"),
    "ipv4 mapped into ipv6": (socket.AF_INET6, "::", "127.0.0.1"),
}


@dataclass(frozen=True, slots=True)
class Pair:
    """Both ends of one connection."""

    dialled: socket.socket
    accepted: socket.socket

    def send(self, there: int, back: int) -> None:
        """So many bytes each way, read by the other end and acknowledged."""
        _transfer(self.dialled, self.accepted, there)
        _transfer(self.accepted, self.dialled, back)

    def of(self, connections: tuple[Connection, ...]) -> tuple[Connection, Connection]:
        """(dialled end, accepted end) among what a source yields; a ValueError if not each is there once."""
        (dialled,) = [each for each in connections if each.local == name(self.dialled)]
        (accepted,) = [each for each in connections if each.remote == name(self.dialled)]
        return dialled, accepted

    def close(self) -> None:
        """The accepted end first, so that its port and the listener's are free at once."""
        self.accepted.close()
        self.dialled.close()


def name(end: socket.socket) -> str:
    return endpoint(*end.getsockname()[:2])


@contextmanager
def listener(way: str = "ipv4") -> Iterator[socket.socket]:
    family, address, _ = WAYS[way]
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.bind((address, 0))
        listening.listen()
        listening.settimeout(10)
        yield listening


def connect(listening: socket.socket, way: str = "ipv4", source_port: int = 0) -> Pair:
    _, _, address = WAYS[way]
    source = ("", source_port) if source_port else None
    dialled = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    dialled.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if source:
        dialled.bind(source)
    dialled.settimeout(10)
    dialled.connect((address, listening.getsockname()[1]))
    accepted, _ = listening.accept()
    accepted.settimeout(10)
    return Pair(dialled, accepted)


@contextmanager
def pair(way: str = "ipv4") -> Iterator[Pair]:
    with listener(way) as listening:
        ends = connect(listening, way)
        try:
            yield ends
        finally:
            ends.close()


def _transfer(sender: socket.socket, receiver: socket.socket, size: int) -> None:
    sent = received = 0
    block = b"x" * 65536
    while received < size:
        if sent < size:
            sent += sender.send(block[: size - sent])
        received += len(receiver.recv(65536))
