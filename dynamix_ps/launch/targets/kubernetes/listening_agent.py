"""An agent that waits for its launcher: `dynamix agent`, the process in a pod.

This process accepts one connection with certificate and token of its job, and starts the agent of the host (agent.py)
with this connection as its streams. It ends with that agent, and so with the run: an agent that has lost its launcher
ends its roles within its lease. Whatever has started the pods may start them again.
"""

from __future__ import annotations

import hmac
import os
import queue
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.host.process import how_it_ended
from dynamix_ps.launch.targets.command_link import AGENT
from dynamix_ps.launch.targets.kubernetes.job_secret import JobSecret, tls_context
from dynamix_ps.launch.targets.kubernetes.tls_relay import TlsRelay

DEFAULT_PORT = 7077

_PROOF_S = 10.0  # for handshake and token
_MOST_AT_ONCE = 64  # connections that have not proved themselves; the oldest are closed first
_MOST_TOLD = 100  # addresses that were refused
_END_S = 15.0  # of the agent, after its stream has ended


def serve(port: int, folder: Path) -> int:
    """Wait for the launcher, serve its run; returns the exit code of the agent, 0 if the launcher has ended it.

    The first SIGTERM or Ctrl-C is a notice to the launcher, which ends the run in order. Before a launcher has
    connected, it ends this process.

    Args:
        port: to listen on, at all addresses.
        folder: has the secret of the job.

    Raises:
        EnvironmentNotReady: the secret is missing, the port is taken, or the agent was killed.
    """
    signal.signal(signal.SIGTERM, _interrupt)  # as the first process of a pod it would have no effect otherwise
    admission = _Admission(JobSecret.load(folder), tls_context(folder, server=True))
    with _listener(port) as listener:
        _say(f"waits for its launcher on port {port}")
        connection, peer = admission.first(listener)
    _say(f"its launcher is at {peer}")
    return _serve_run(connection)


def _serve_run(connection: ssl.SSLSocket) -> int:
    agent = subprocess.Popen(
        AGENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C comes to it as the notice below
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.send_signal(signal.SIGTERM))
    assert agent.stdin is not None
    assert agent.stdout is not None
    TlsRelay(connection, agent.stdout.fileno(), agent.stdin.fileno()).run()
    with suppress(OSError):
        agent.stdin.close()  # it ends at that, if it has not yet
    try:
        exit_code = agent.wait(_END_S)
    except subprocess.TimeoutExpired:
        agent.kill()  # its reaper removes the rest
        exit_code = agent.wait()
    if exit_code < 0:
        raise EnvironmentNotReady(f"the agent {how_it_ended(exit_code)}, perhaps for memory; see the pod's events")
    return exit_code


class _Admission:
    """Finds the launcher among all connections. Each connection has its own thread, so that none holds up another."""

    def __init__(self, secret: JobSecret, context: ssl.SSLContext) -> None:
        self._secret, self._context = secret, context
        self._admitted: queue.SimpleQueue[tuple[ssl.SSLSocket, str]] = queue.SimpleQueue()
        self._began_s: dict[ssl.SSLSocket, float] = {}  # of those that have not proved themselves; monotonic
        self._told: set[str] = set()
        self._done_reading, self._done_writing = os.pipe()  # a byte per connection that was decided

    def first(self, listener: socket.socket) -> tuple[ssl.SSLSocket, str]:
        """The first connection with certificate and token of the job, and the address of its other end."""
        try:
            while True:
                self._take(listener)
                with suppress(queue.Empty):
                    return self._admitted.get_nowait()
        finally:
            for connection in list(self._began_s):
                _cut(connection)

    def _take(self, listener: socket.socket) -> None:
        """Wait for a connection, or for the decision about one; cut connections that take too long or are too many."""
        waiting = (self._done_reading, listener.fileno())
        ready, _, _ = select.select(waiting, (), (), 1.0 if self._began_s else None)
        if self._done_reading in ready:
            os.read(self._done_reading, _MOST_AT_ONCE)
        for place, (connection, began_s) in enumerate(reversed(list(self._began_s.items()))):
            if time.monotonic() - began_s > _PROOF_S or place >= _MOST_AT_ONCE:
                _cut(connection)
        if listener.fileno() in ready:
            with suppress(OSError):  # it is gone again
                plain, address = listener.accept()
                connection = self._context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
                self._began_s[connection] = time.monotonic()
                peer = str(address[0]).removeprefix("::ffff:")  # an IPv4 address, as IPv6 has it
                threading.Thread(target=self._decide, args=(connection, peer), daemon=True).start()

    def _decide(self, connection: ssl.SSLSocket, peer: str) -> None:
        try:
            connection.settimeout(_PROOF_S)
            connection.do_handshake()
            proof = _line(connection, len(self._secret.token))
            if hmac.compare_digest(proof, self._secret.token.encode()):
                del self._began_s[connection]  # first, so that nobody cuts it
                self._admitted.put((connection, peer))
            else:
                self._refuse(connection, peer, "it has another token")
        except ssl.SSLEOFError:
            connection.close()  # who only looks whether something listens says nothing
        except ssl.SSLError as error:
            self._refuse(connection, peer, f"it has no certificate of this job ({error.reason or error})")
        except (OSError, ValueError):
            connection.close()
        finally:
            self._began_s.pop(connection, None)
            with suppress(OSError):
                os.write(self._done_writing, b".")

    def _refuse(self, connection: ssl.SSLSocket, peer: str, why: str) -> None:
        connection.close()
        if peer not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(peer)
            _say(f"refused {peer}: {why}")


def _line(connection: ssl.SSLSocket, most: int) -> bytes:
    """Read up to a newline, at most one byte more than `most`, and nothing of what follows."""
    line = b""
    while len(line) <= most and (byte := connection.recv(1)) not in (b"", b"\n"):
        line += byte
    return line


def _cut(connection: ssl.SSLSocket) -> None:
    """Cut a connection; this wakes the thread that reads from it."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _listener(port: int) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        raise EnvironmentNotReady(
            f"port {port} for the launcher: {os.strerror(error.errno or 0)}; choose another one with --port"
        ) from error


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(f"agent on {socket.gethostname()}: {text}", file=sys.stderr, flush=True)
