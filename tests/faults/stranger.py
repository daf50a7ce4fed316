"""`python -m tests.faults.stranger ATTACK ADDRESS`: attacks as another user, until its standard input ends.

Started by root, it becomes the user nobody after its imports; otherwise it stays who it is. It prints `attacking` once
everything it holds open is open.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from dynamix_ps.metrics.network.probe.client import ProbeSource
from dynamix_ps.open_files import raise_open_files
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc.auth import GREET, call_metadata, greeting_metadata
from tests.launching import ROOT, environment, read_until
from tests.other_user import NOBODY

CALLS = 320
STREAMS_PER_CONNECTION = 16
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_REGISTER = "/dynamix.arbitrator.Arbitrator/Register"
_HEADERS, _SETTINGS, _END_HEADERS = 1, 4, 4


@contextlib.contextmanager
def attack(name: str, address: str) -> Iterator[list[str]]:
    """The attack is under way inside the `with` block. Behind it, the list has what the attacker has printed."""
    said: list[str] = []
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.stranger", name, address],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        read_until(process, "attacking")
        yield said
        assert process.poll() is None, "the attacker gave up"
    finally:
        process.kill()
        said.append(process.communicate()[0])


def _channels(address: str) -> list[grpc.Channel]:
    alone = [("grpc.use_local_subchannel_pool", 1)]
    return [grpc.insecure_channel(address, options=alone) for _ in range(CALLS // STREAMS_PER_CONNECTION)]


def _open_streams(address: str, method: str, message: bytes) -> None:
    for channel in _channels(address):
        for _ in range(STREAMS_PER_CONNECTION):
            _held.append(channel.unary_stream(method)(message))


def watches(address: str) -> None:
    _open_streams(address, "/grpc.health.v1.Health/Watch", b"")


def streams(address: str) -> None:
    _open_streams(address, "/dynamix.arbitrator.Arbitrator/Plans", b"")


def half_open_calls(address: str) -> None:
    """Headers of calls, and no message behind them; gRPC's own client cannot do that."""
    block = b"".join(
        b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value  # HPACK: a literal that is not indexed
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/dynamix.arbitrator.Arbitrator/Register"),
            (b":authority", b"x"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
    )
    for _ in range(CALLS // STREAMS_PER_CONNECTION):
        connection = _connect(address)
        connection.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b""))
        for stream in range(1, 2 * STREAMS_PER_CONNECTION, 2):
            connection.sendall(_frame(_HEADERS, _END_HEADERS, stream, block))
        _held.append(connection)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def idle_connections(address: str) -> None:
    for _ in range(min(1500, raise_open_files(2000) - 100)):
        _held.append(_connect(address))


def calls_without_pause(address: str) -> None:
    def call(channel: grpc.Channel) -> None:
        greet, register = channel.unary_unary(GREET), channel.unary_unary(_REGISTER)
        while True:
            with contextlib.suppress(grpc.RpcError):
                greet(b"", metadata=greeting_metadata(os.urandom(32)), timeout=10)
                register(b"", metadata=call_metadata("run-1", os.urandom(104)), timeout=10)

    for channel in _channels(address)[:4]:
        threading.Thread(target=call, args=(channel,), daemon=True).start()


def garbage(address: str) -> None:
    for noise in (os.urandom(100_000), b"GET / HTTP/1.1\r\n\r\n", _PREFACE + b"\xff" * 100_000) * 50:
        with contextlib.suppress(OSError):
            connection = _connect(address)
            _held.append(connection)
            connection.sendall(noise)


def large_calls(address: str) -> None:
    unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 1 << 21)]
    for _ in range(8):
        channel = grpc.insecure_channel(address, options=[*unlimited, ("grpc.use_local_subchannel_pool", 1)])
        register = channel.unary_unary(_REGISTER)
        _held.append(register.future(b"", metadata=(("dynamix-run", "x" * (1 << 20)),)))
        _held.append(register.future(bytes(64 << 20)))


def impostor(address: str) -> None:
    """Answers every call, with a plan of its own, and prints what it is told."""

    def answer(method: str, told: dict[str, object]) -> Callable[..., Iterator[bytes]]:
        def replies(messages: Iterator[bytes], _context: object) -> Iterator[bytes]:
            print("told", method, repr(told), [repr(message) for message in messages], flush=True)
            plan = pb.Plan(version=1, batch_sizes=[1, 1, 1])
            reply = plan if method.endswith("Plans") else pb.RegisterReply(plan=plan)
            yield os.urandom(64) if method == GREET else os.urandom(32) + reply.SerializeToString()

        return replies

    class Everything(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
        def service(self, details: grpc.HandlerCallDetails) -> object:
            replies = answer(details.method, dict(details.invocation_metadata))
            return grpc.stream_stream_rpc_method_handler(replies)

    server = grpc.server(ThreadPoolExecutor(8), handlers=(Everything(),), options=(("grpc.so_reuseport", 0),))
    assert server.add_insecure_port(address)
    server.start()
    _held.append(server)


def slow_scrapes(address: str) -> None:
    for number in range(400):
        with contextlib.suppress(OSError):
            connection = _connect(address)
            _held.append(connection)
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" if number % 2 else b"GET /m")

    def drip() -> None:
        while True:
            for connection in _held:
                with contextlib.suppress(OSError):
                    assert isinstance(connection, socket.socket)
                    connection.send(b"x")
            time.sleep(0.2)

    threading.Thread(target=drip, daemon=True).start()


def scrapes_without_pause(address: str) -> None:
    def scrape() -> None:
        while True:
            with contextlib.suppress(OSError), _connect(address) as connection:
                connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                while connection.recv(1 << 16):
                    pass

    for _ in range(2):
        threading.Thread(target=scrape, daemon=True).start()


def endless_requests(address: str) -> None:
    for noise in (b"GET /metrics HTTP/1.1\r\n" + b"x" * (1 << 20), os.urandom(1 << 20)) * 50:
        with contextlib.suppress(OSError):
            connection = _connect(address)
            _held.append(connection)
            connection.sendall(noise)


def probe_connections(path: str) -> None:
    for _ in range(min(1000, raise_open_files(1200) - 100)):
        _held.append(_connect(path))


def probe_garbage(path: str) -> None:
    for noise in (os.urandom(1 << 16), b'{"v":1,"ask":"all"}\n' * 100, b"x") * 30:
        with contextlib.suppress(OSError):
            connection = _connect(path)
            _held.append(connection)
            connection.sendall(noise)


def probe_requests_without_pause(path: str) -> None:
    def ask() -> None:
        while True:
            with contextlib.suppress(OSError), _connect(path) as connection:
                while True:
                    connection.sendall(b'{"v":1,"ask":"mine"}\n')
                    if not connection.recv(1 << 16):
                        break

    for _ in range(2):
        threading.Thread(target=ask, daemon=True).start()


def probe_spying(path: str) -> None:
    snapshot = ProbeSource(path).ask("all")
    assert {process.pid for process in snapshot.processes} <= {os.getpid()}, snapshot
    assert {connection.pid for connection in snapshot.connections} <= {os.getpid()}, snapshot


def probe_of_a_run(path: str) -> None:
    try:
        _connect(path)
    except PermissionError:
        return
    raise AssertionError(f"{path} let user {os.getuid()} connect")


def newcomer_idle_connections(address: str) -> None:
    for _ in range(400):
        _held.append(_connect(address))


def newcomer_garbage(address: str) -> None:
    def knock() -> None:
        while True:
            for noise in (os.urandom(64), os.urandom(1 << 16)):  # the former is as long as what a worker says
                with contextlib.suppress(OSError), _connect(address) as connection:
                    connection.recv(32)
                    connection.sendall(noise)
                    connection.recv(1)

    for _ in range(2):
        threading.Thread(target=knock, daemon=True).start()


def _connect(address: str) -> socket.socket:
    if address.startswith("/"):
        connection = socket.socket(socket.AF_UNIX)  # without a timeout it waits until there is room
        connection.connect(address)
        connection.settimeout(10)
        return connection
    host, _, port = address.rpartition(":")
    connection = socket.socket()
    connection.settimeout(10)
    connection.connect((host, int(port)))
    return connection


_held: list[object] = []

ATTACKS: dict[str, Callable[[str], None]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        watches,
        streams,
        half_open_calls,
        idle_connections,
        calls_without_pause,
        garbage,
        large_calls,
        impostor,
        slow_scrapes,
        scrapes_without_pause,
        endless_requests,
        probe_connections,
        probe_garbage,
        probe_requests_without_pause,
        probe_spying,
        probe_of_a_run,
        newcomer_idle_connections,
        newcomer_garbage,
    )
}


def main(name: str, address: str) -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY.pw_gid)
        os.setuid(NOBODY.pw_uid)
    ATTACKS[name](address)
    print("attacking", flush=True)
    sys.stdin.read()
    os._exit(0)  # what it holds open needs no farewell


if __name__ == "__main__":
    main(*sys.argv[1:])
