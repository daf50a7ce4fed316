"""The protocol of the data plane by hand, for somebody who reaches its ports."""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import struct
from collections.abc import Iterator

HELLO_MAGIC, MESSAGE_MAGIC = 0x64786832, 0x64786D31
TERMINATE, ADD_NODE, BARRIER = 1, 2, 3
SCHEDULER_ID, SERVER_ID, WORKER_ID, NO_ID = 1, 8, 9, 32767


def connect(port: int, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((host, port), timeout=20.0)


def say(connection: socket.socket, data: bytes) -> None:
    """Send what the other side takes before it closes the connection."""
    with contextlib.suppress(ConnectionError):
        connection.sendall(data)


def receive(connection: socket.socket, size: int) -> bytes:
    """`size` bytes, or fewer when the connection ends."""
    got = b""
    with contextlib.suppress(ConnectionError):
        while len(got) < size and (more := connection.recv(size - len(got))):
            got += more
    return got


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side closes the connection (within 20 s), after whatever it still sends."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(4096):
            pass
    return True


def proof(token: str, part: str, challenge: bytes, number: bytes) -> bytes:
    return hmac.digest(token.encode(), f"dynamix data plane 1, {part}\n".encode() + challenge + number, "sha256")


def hello(token: str, challenge: bytes) -> bytes:
    number = os.urandom(32)
    return struct.pack("<I", HELLO_MAGIC) + number + proof(token, "connecting", challenge, number)


def challenge_of(connection: socket.socket) -> bytes:
    magic, challenge = struct.unpack("<I32s", receive(connection, 36))
    assert magic == HELLO_MAGIC
    return bytes(challenge)


def greet(port: int, token: str) -> tuple[socket.socket, bool]:
    """A connection on which `token` was used, and whether it was welcome."""
    connection = connect(port)
    connection.sendall(hello(token, challenge_of(connection)))
    welcome, _ = struct.unpack("<I32s", receive(connection, 36))
    return connection, bool(welcome)


def message(
    sender: int, *, command: int = 0, push: bool = True, parts: tuple[bytes, ...] = (), declared: tuple[int, ...] = ()
) -> bytes:
    """A message as roles send it. `declared` are the sizes in its header, where they are not those of `parts`."""
    meta = struct.pack(
        "<iiiii4xQ?3xiiii??2xi4xQQii", 0, 0, command, 0, 7, 0, True, 0, 5, 0, 0, push, False, 0, 0, 0, 4, 0
    )
    sizes = (*(declared or tuple(map(len, parts))), 0, 0, 0, 0)[:4]
    count = len(declared) or len(parts)
    return struct.pack("<IiII4Q", MESSAGE_MAGIC, sender, len(meta), count, *sizes) + meta + b"".join(parts)


def push_of(values: bytes, key: int = 0, sender: int = WORKER_ID) -> bytes:
    return message(sender, parts=(struct.pack("<Q", key), values, struct.pack("<i", len(values))))


def huge_push(size: int = 2**39) -> bytes:
    return message(WORKER_ID, parts=(bytes(8),), declared=(8, size, 4)) + bytes(4096)


def forged_messages() -> Iterator[bytes]:
    """What a stranger could want a role to take for a message of the run."""
    yield message(SCHEDULER_ID, command=TERMINATE)
    yield message(NO_ID, command=ADD_NODE)
    yield message(WORKER_ID, command=BARRIER)
    yield push_of(struct.pack("<1000f", *[1e9] * 1000))
    yield push_of(b"1234", key=12345678)
    yield huge_push()
    yield message(WORKER_ID, push=False, parts=(bytes(8), b"", bytes(4)))
    yield message(WORKER_ID)[:30]
