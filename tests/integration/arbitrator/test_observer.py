"""The observer over real sockets: the newest report arrives, and the caller never waits or sees an error."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from dynamix_ps.config.schema import Timeouts
from dynamix_ps.messages import Flow, RoleReport, SystemSample
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc import arbitrator_pb2_grpc as pb_grpc
from dynamix_ps.rpc import convert
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.observer import RoleObserver
from tests.integration.arbitrator.arbitrator_process import PATIENCE_S, RUN_ID, TOKEN, free_address, wait_until
from tests.proven import add_servicer

pytestmark = pytest.mark.timeout(60)


def report(time_s: float) -> RoleReport:
    flows = (Flow("10.0.0.1:1", "10.0.0.2:2", 10.0, 20.0, 0.0),)
    return RoleReport("server-0", "server", -1, "host", 7, time_s, "ebpf", 0.1, flows, SystemSample(cpu_ratio=0.5))


class Receiver(pb_grpc.ArbitratorServicer):
    """Takes reports as the arbitrator would; `answer` may hold a call up or end it with a status."""

    def __init__(self) -> None:
        self.got: list[RoleReport] = []
        self.metadata: dict[str, Any] = {}
        self.answer: Callable[[Any], None] = lambda context: None

    def Observe(self, request: pb.ObserveRequest, context: Any) -> pb.ObserveReply:
        self.got.append(convert.role_report_from_proto(request))
        self.metadata = dict(context.invocation_metadata())
        self.answer(context)
        return pb.ObserveReply()

    def times(self) -> list[float]:
        return [one.time_s for one in self.got]


@contextmanager
def listening(address: str) -> Iterator[Receiver]:
    receiver = Receiver()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_servicer(receiver, server, TOKEN)
    assert server.add_insecure_port(address)
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


@pytest.fixture
def address() -> str:
    return free_address()


@contextmanager
def observing(address: str, **timeouts: float) -> Iterator[RoleObserver]:
    observer = RoleObserver(ArbitratorAccess(address, RUN_ID, TOKEN, Timeouts(**({"rpc_s": PATIENCE_S} | timeouts))))
    try:
        yield observer
    finally:
        observer.close()
        assert not observer._thread.is_alive()


def test_reports_arrive_whole_and_without_the_token(address: str) -> None:
    with listening(address) as receiver, observing(address) as observer:
        for moment in (1.0, 2.0):
            observer.send(report(moment))
            wait_until(lambda moment=moment: moment in receiver.times(), "the report")
    assert receiver.times() == [1.0, 2.0]
    assert repr(receiver.got[1]) == repr(report(2.0))
    assert receiver.metadata["dynamix-run"] == RUN_ID
    assert TOKEN not in str(receiver.metadata)


def test_the_newest_replaces_what_could_not_be_sent(address: str) -> None:
    busy = threading.Event()
    with listening(address) as receiver, observing(address) as observer:
        receiver.answer = lambda context: busy.wait(PATIENCE_S)
        observer.send(report(1.0))
        wait_until(lambda: receiver.times() == [1.0], "the first call")
        for moment in range(2, 1000):
            observer.send(report(moment))
        busy.set()
        wait_until(lambda: receiver.times()[-1] == 999.0, "the newest")
    assert receiver.times() == [1.0, 999.0]


def test_an_arbitrator_that_comes_late_or_again_gets_the_newest(address: str) -> None:
    with observing(address) as observer:
        for _ in range(2):
            observer.send(report(1.0))
            observer.send(report(2.0))
            with listening(address) as receiver:
                wait_until(lambda receiver=receiver: 2.0 in receiver.times(), "the report")
            wait_until(lambda: observer._newest is None, "the answer")


def test_a_call_that_fails_is_tried_again_and_a_refused_report_is_given_up(address: str) -> None:
    with listening(address) as receiver, observing(address) as observer:
        receiver.answer = lambda context: context.abort(grpc.StatusCode.UNAVAILABLE, "later")
        observer.send(report(1.0))
        wait_until(lambda: len(receiver.got) >= 3, "another attempt")
        receiver.answer = lambda context: context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
        wait_until(lambda: observer._newest is None, "giving up")
        receiver.answer = lambda context: None
        observer.send(report(2.0))
        wait_until(lambda: receiver.times()[-1] == 2.0, "the next report")


def test_what_is_left_is_sent_when_closing(address: str) -> None:
    with listening(address) as receiver:
        with observing(address) as observer:
            observer.send(report(5.0))
        assert receiver.times() == [5.0]


def test_a_peer_that_never_answers_holds_nobody_up() -> None:
    with socket.socket() as blackhole:
        blackhole.bind(("127.0.0.1", 0))
        blackhole.listen()
        with observing(f"127.0.0.1:{blackhole.getsockname()[1]}", rpc_s=0.2) as observer:
            for moment in range(1000):
                observer.send(report(moment))


def test_a_forked_child_neither_sends_nor_hangs(address: str) -> None:
    with listening(address) as receiver, observing(address) as observer:
        observer.send(report(1.0))
        wait_until(lambda: observer._newest is None, "the first report")
        child = os.fork()
        if child == 0:
            observer.send(report(2.0))
            observer.close()
            os._exit(0 if observer._newest is None else 1)
        assert os.waitpid(child, 0)[1] == 0
        observer.send(report(3.0))
        wait_until(lambda: receiver.times()[-1] == 3.0, "the parent's next report")
        assert receiver.times() == [1.0, 3.0]
