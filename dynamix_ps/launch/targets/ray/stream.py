"""The command that reaches the agent of a node of Ray: it hands its standard streams to the driver of the launch.

    python -m dynamix_ps.launch.targets.ray.stream SOCKET NODE

The driver (driver.py) reads and writes the streams. This process waits, and ends with the exit code of the agent.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import struct
import sys

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.exit_codes import exit_code_of

_PEER = struct.Struct("iII")  # struct ucred: pid, uid, gid
_MOST_BYTES = 256  # of a node's id
_HAND_OVER_S = 10.0


def is_of_this_user(connection: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket has the same user, according to the kernel."""
    _, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return bool(uid == os.getuid())


def listen() -> tuple[socket.socket, str]:
    """A Unix socket for commands, and its name. The socket is in no file system, so it leaves nothing behind."""
    name = f"dynamix-ray-{secrets.token_hex(16)}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    listener.listen(64)
    return listener, name


def received_streams(connection: socket.socket) -> tuple[str, tuple[int, int, int]] | None:
    """The node and the standard streams of a command. None, and a closed connection, for a process of another user."""
    connection.settimeout(_HAND_OVER_S)
    try:
        if is_of_this_user(connection):
            node, streams, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
            if len(streams) == 3:
                return node.decode(), (streams[0], streams[1], streams[2])
    except OSError:
        pass  # it has ended
    connection.close()
    return None


def tell_end(connection: socket.socket, exit_code: int) -> None:
    """Let a command end with this exit code, as in subprocess: negative for a signal."""
    with connection:
        try:
            connection.sendall(f"{exit_code}".encode())
        except OSError:
            return  # it was killed


def main() -> int:
    """Entry point. Ignores signals: the launcher handles them, and closes the streams."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    name, node = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(f"\0{name}")
        except OSError as error:
            raise EnvironmentNotReady("the launch's driver of Ray is gone") from error
        if not is_of_this_user(connection):
            raise EnvironmentNotReady("the socket of the launch's driver of Ray belongs to another user")
        socket.send_fds(connection, [node.encode()], [0, 1, 2])
        try:
            answer = connection.recv(_MOST_BYTES).decode()
        except OSError:
            answer = ""
    if not answer:
        raise EnvironmentNotReady("the launch's driver of Ray has ended")
    exit_code = int(answer)
    return exit_code if exit_code >= 0 else 128 - exit_code  # as shells tell signals


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
