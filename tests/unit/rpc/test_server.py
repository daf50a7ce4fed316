"""What a caller can take up of the server: connections, calls, messages."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dynamix_ps.arbitrator.service import Arbitrator
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc import channel
from dynamix_ps.rpc.auth import GREET, call_metadata, greeting_metadata, refusal_is_proven, refusal_metadata
from dynamix_ps.rpc.server import RpcServer
from dynamix_ps.rpc.session import Call, ClientSession
from dynamix_ps.token_proof import random_number
from tests.proven import stub_of
from tests.unit.arbitrator.service_bench import Bench, Scripted

pytestmark = pytest.mark.timeout(60)

RUN, TOKEN = "run-1", "secret"
HEARTBEAT = "/dynamix.arbitrator.Arbitrator/Heartbeat"


@contextlib.asynccontextmanager
async def listening(folder: Path) -> AsyncIterator[int]:
    """The port of a server."""
    server = RpcServer(Bench(folder, Scripted()).arbitrator, RUN, TOKEN, 3)
    port = await server.start("127.0.0.1:0")
    try:
        yield port
    finally:
        await server.stop(0)


async def closed(port: int) -> None:
    """Connect, say nothing, and return when the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionResetError):
        while await reader.read(1000):  # settings of HTTP/2
            pass
    writer.close()


def greeted(connection: grpc.Channel) -> ClientSession:
    own = random_number()
    return ClientSession(TOKEN, own, connection.unary_unary(GREET)(b"", metadata=greeting_metadata(own)))


async def greeted_async(connection: grpc.aio.Channel) -> ClientSession:
    own = random_number()
    return ClientSession(TOKEN, own, await connection.unary_unary(GREET)(b"", metadata=greeting_metadata(own)))


def proven(session: ClientSession, method: str) -> tuple[Call, Any]:
    call, told = session.call(method)
    return call, call_metadata(RUN, told)


async def refusal_of(call: grpc.aio.UnaryUnaryCall[bytes, bytes]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code()


async def test_a_connection_that_says_nothing_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "IDLE_S", 1)

    async with listening(tmp_path) as port:
        await closed(port)


async def test_connections_beyond_the_limit_are_closed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "connection_limit", lambda n_workers: 5)
    monkeypatch.setattr(channel, "IDLE_S", 3600)

    async with listening(tmp_path) as port:
        tasks = [asyncio.create_task(closed(port)) for _ in range(8)]
        while sum(task.done() for task in tasks) < 3:
            await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        assert sum(task.done() for task in tasks) == 3
        for task in tasks:
            task.cancel()


def test_files_stay_free_for_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "raise_open_files", lambda wanted: min(wanted, 1024))
    assert channel.connection_limit(3) == 1024 - channel.SPARE_FILES
    monkeypatch.setattr(channel, "raise_open_files", lambda wanted: wanted)
    assert channel.connection_limit(3) == channel.SPARE_CONNECTIONS + 12


async def test_calls_beyond_the_limit_on_those_that_wait_are_cancelled_and_the_others_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call holds the event loop up, and the next one is taken. Of the other 14, five wait: gRPC cancels a
    call that finds more than the limit."""
    monkeypatch.setattr(channel, "waiting_limit", lambda n_workers: 4)
    held, go_on = threading.Event(), threading.Event()

    def heartbeat(*_: object) -> tuple[()]:
        held.set()
        assert go_on.wait(30)
        return ()

    def codes(port: int) -> Counter[str]:
        message = pb.HeartbeatRequest(identity=pb.Identity(rank=0, incarnation="life-0")).SerializeToString()
        cancelled = threading.Semaphore(0)
        with grpc.insecure_channel(f"127.0.0.1:{port}") as connection:
            session = greeted(connection)

            def beat() -> Any:
                call, metadata = proven(session, HEARTBEAT)
                return connection.unary_unary(HEARTBEAT).future(call.seal(message), metadata=metadata)

            calls = [beat()]
            assert held.wait(30)
            for _ in range(15):
                calls.append(beat())
                calls[-1].add_done_callback(lambda _: cancelled.release())
            for _ in range(9):
                assert cancelled.acquire(timeout=30)
            go_on.set()
            return Counter(call.code().name for call in calls)

    monkeypatch.setattr(Arbitrator, "heartbeat", heartbeat)
    async with listening(tmp_path) as port:
        assert await asyncio.to_thread(codes, port) == {"OK": 7, "CANCELLED": 9}


def test_the_calls_of_all_workers_may_wait() -> None:
    assert channel.waiting_limit(1024) >= 2 * 1024, "a report and a heartbeat of each"


async def test_of_the_health_service_only_the_check_is_there(tmp_path: Path) -> None:
    async with listening(tmp_path) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as connection:
        stub = health_pb2_grpc.HealthStub(connection)
        reply = await stub.Check(health_pb2.HealthCheckRequest())
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        _, mine = proven(await greeted_async(connection), "/grpc.health.v1.Health/Watch")
        for metadata, code in (((), "UNAUTHENTICATED"), (mine, "UNIMPLEMENTED")):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Watch(health_pb2.HealthCheckRequest(), metadata=metadata).read()
            assert refused.value.code().name == code


async def test_compressed_messages_are_refused(tmp_path: Path) -> None:
    async with listening(tmp_path) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as connection:
        session, send = await greeted_async(connection), connection.unary_unary(HEARTBEAT)
        call, mine = proven(session, HEARTBEAT)
        assert await refusal_of(send(call.seal(bytes(100_000)), metadata=mine)) == grpc.StatusCode.INVALID_ARGUMENT
        call, mine = proven(session, HEARTBEAT)
        small = send(call.seal(bytes(100_000)), metadata=mine, compression=grpc.Compression.Gzip)
        assert await refusal_of(small) == grpc.StatusCode.UNIMPLEMENTED


async def test_a_caller_of_another_run_is_refused_with_a_proof(tmp_path: Path) -> None:
    """Without the proof the client would take the refusal for that of an impostor."""

    def story(port: int) -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as connection:
            stub = stub_of(connection, "another run", TOKEN)
            with pytest.raises(grpc.RpcError) as refused:
                stub.Heartbeat(pb.HeartbeatRequest(), timeout=30)
            assert refused.value.code().name == "FAILED_PRECONDITION"
            assert "found 'another run', expected 'run-1'" in refused.value.details()
            assert TOKEN not in refused.value.details()

    async with listening(tmp_path) as port:
        await asyncio.to_thread(story, port)
    call, told = Call(bytes(32), 7, "client", "arbitrator"), Call(bytes(32), 7, "arbitrator", "client")
    assert refusal_is_proven(refusal_metadata(told, "NOT_FOUND"), call, "NOT_FOUND")
    assert not refusal_is_proven(refusal_metadata(told, "NOT_FOUND"), call, "FAILED_PRECONDITION")
    assert not refusal_is_proven(None, call, "NOT_FOUND")
