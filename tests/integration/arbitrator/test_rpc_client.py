"""The client over real sockets: refusals, outages, forks; and malformed calls to the server."""

from __future__ import annotations

import math
import signal
import socket
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from dynamix_ps.config.schema import Timeouts
from dynamix_ps.messages import Plan
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc import arbitrator_pb2_grpc as pb_grpc
from dynamix_ps.rpc import auth, convert
from dynamix_ps.rpc.auth import call_metadata
from dynamix_ps.rpc.channel import message_limit_bytes
from tests.control_plane import config, record, registration
from tests.integration.arbitrator.arbitrator_process import (
    PATIENCE_S,
    RUN_ID,
    TOKEN,
    ArbitratorProcess,
    Worker,
    free_address,
    wait_until,
)
from tests.proven import add_servicer, stub_of

pytestmark = pytest.mark.timeout(120)

START = Plan(0, (64, 64, 64))


@pytest.fixture
def stub(arbitrator: ArbitratorProcess) -> Iterator[Any]:
    with grpc.insecure_channel(arbitrator.address) as channel:
        yield stub_of(channel, RUN_ID, TOKEN)


def ended(worker: Worker) -> bool:
    return not worker.client._thread.is_alive()


def test_never_reachable_is_one_warning_and_blocks_nothing() -> None:
    worker = Worker(free_address())
    worker.client.start()
    worker.report(START, 0)
    assert worker.client.newest_plan() is None
    assert worker.client.peers() == ()
    wait_until(lambda: worker.kinds() == ["degraded"], "the warning")
    attempts = worker.client._rng.getstate()
    wait_until(lambda: worker.client._rng.getstate() != attempts, "another attempt")
    assert worker.kinds() == ["degraded"]
    what = worker.events[0][1]
    assert what["what"] == "arbitrator"
    assert "UNAVAILABLE" in what["detail"]
    worker.client.close(PATIENCE_S)
    assert ended(worker)


def test_a_peer_that_accepts_and_never_answers_is_an_outage() -> None:
    with socket.socket() as blackhole:
        blackhole.bind(("127.0.0.1", 0))
        blackhole.listen()
        worker = Worker(f"127.0.0.1:{blackhole.getsockname()[1]}", timeouts=Timeouts(rpc_s=0.2, lease_s=0.3))
        worker.client.start()
        for window in range(100):
            worker.report(START, window)
        wait_until(lambda: worker.kinds() == ["degraded"], "the warning")
        worker.client.close(PATIENCE_S)
        assert ended(worker)


def test_an_arbitrator_that_comes_late_is_no_warning(tmp_path: Path) -> None:
    process = ArbitratorProcess(tmp_path, config())
    worker = Worker(process.address, timeouts=Timeouts(rpc_s=0.5, lease_s=60.0))
    worker.client.start()
    worker.report(START, 0)
    try:
        process.start()
        process.wait_listening()
        wait_until(lambda: worker.client.peers() != (), "the first heartbeat")
        assert worker.events == []
    finally:
        worker.client.close(2.0)
        process.kill()


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        ({"run_id": "run-2"}, ["FAILED_PRECONDITION", "found 'run-2', expected 'run-1'"]),
        ({"me": registration(7)}, ["INVALID_ARGUMENT", "rank: got 7, expected 0..2"]),
        ({"me": registration(0, plan=Plan(0, (1, 2)))}, ["INVALID_ARGUMENT", "got 2 sizes, expected 3"]),
    ],
)
def test_refused_for_good_is_one_event_and_silence(
    arbitrator: ArbitratorProcess, change: dict[str, Any], texts: list[str]
) -> None:
    worker = Worker(arbitrator.address, **change)
    worker.client.start()
    wait_until(lambda: ended(worker), "the client to give up")
    assert worker.kinds() == ["degraded"]
    assert all(text in worker.events[0][1]["detail"] for text in texts)
    worker.report(START, 0)
    assert worker.client.newest_plan() is None
    assert len(arbitrator.lines("rejected")) == 1
    assert arbitrator.lines("registered") == []
    worker.client.close(1.0)


def test_a_replaced_process_goes_quiet_and_its_successor_goes_on(arbitrator: ArbitratorProcess) -> None:
    old, new = Worker(arbitrator.address), Worker(arbitrator.address, me=registration(0, "next-life"))
    old.client.start()
    wait_until(lambda: old.client.peers() != (), "the first one to register")
    new.client.start()
    wait_until(lambda: ended(old), "the first one to give up")
    assert old.kinds() == ["degraded"]
    assert "'life-0' was replaced by a later process" in old.events[0][1]["detail"]
    wait_until(lambda: new.client.peers() != (), "the second one's heartbeat")
    assert new.events == []
    assert len(arbitrator.lines("rejected")) == 1
    new.client.close(2.0)


def test_a_replaced_process_stays_replaced_after_a_restart(arbitrator: ArbitratorProcess) -> None:
    for incarnation in ("first", "second"):
        worker = Worker(arbitrator.address, me=registration(0, incarnation))
        worker.client.start()
        wait_until(lambda worker=worker: worker.client.peers() != (), "registration")
        worker.client.close(2.0)
    arbitrator.signal(signal.SIGKILL)
    arbitrator.wait()
    arbitrator.start()
    arbitrator.wait_listening()
    zombie = Worker(arbitrator.address, me=registration(0, "first"))
    zombie.client.start()
    wait_until(lambda: ended(zombie), "the refusal")
    assert "'first' was replaced" in zombie.events[0][1]["detail"]


def test_a_malformed_record_is_given_up_and_the_next_ones_arrive(arbitrator: ArbitratorProcess) -> None:
    worker = Worker(arbitrator.address)
    worker.client.start()
    worker.client.report(record(0, 0, loss=math.inf))
    worker.client.report(record(0, 1, duration_s=-1.0))
    worker.client.report(record(0, 2))
    for rank in (1, 2):
        other = Worker(arbitrator.address, rank)
        other.client.start()
        other.client.report(record(rank, 2))
        wait_until(lambda other=other: not other.client._records, "the report to be sent")
        other.client.close(2.0)
    wait_until(lambda: [line["window"] for line in arbitrator.lines("plan", "kept")] == [2], "the decision")
    assert [fields["what"] for _, fields in worker.events] == ["report"]
    assert "loss: got inf" in worker.events[0][1]["detail"]
    worker.client.close(2.0)


def test_what_is_queued_when_a_worker_closes_still_counts(arbitrator: ArbitratorProcess) -> None:
    first, *others = (Worker(arbitrator.address, rank) for rank in range(3))
    for other in others:
        other.client.start()
        other.report(START, 19)
        wait_until(lambda other=other: not other.client._records, "the report to be sent")
    first.client.start()
    wait_until(lambda: len(first.client.peers()) == 3, "the connection")
    for window in range(20):
        first.report(START, window)
    first.client.close(PATIENCE_S)
    wait_until(lambda: arbitrator.last_window() == 19, "the decision")
    assert arbitrator.lines("plan", "kept")[-1]["reported"] == [0, 1, 2]
    for other in others:
        other.client.close(2.0)


class Overrun(pb_grpc.ArbitratorServicer):
    """Cancels the first report, as a server does on which too many calls wait."""

    def __init__(self) -> None:
        self.windows: list[int] = []

    def Register(self, request: Any, context: Any) -> pb.RegisterReply:
        return pb.RegisterReply(plan=request.plan)

    def Report(self, request: Any, context: Any) -> pb.ReportReply:
        self.windows.append(request.record.window)
        if len(self.windows) == 1:
            context.abort(grpc.StatusCode.CANCELLED, "")
        return pb.ReportReply()

    def Heartbeat(self, request: Any, context: Any) -> pb.HeartbeatReply:
        return pb.HeartbeatReply()

    def Leave(self, request: Any, context: Any) -> pb.LeaveReply:
        return pb.LeaveReply()


def test_a_report_that_an_overrun_arbitrator_cancels_is_sent_again() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    overrun = Overrun()
    add_servicer(overrun, server, TOKEN)
    worker = Worker(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    server.start()
    try:
        worker.client.start()
        worker.report(START, 7)
        wait_until(lambda: overrun.windows == [7, 7], "the second attempt")
        wait_until(lambda: not worker.client._records, "its answer")
        assert worker.kinds() == ["degraded", "recovered"]
        worker.client.close(2.0)
    finally:
        server.stop(0)


def status(call: Any, request: Any, **metadata: Any) -> tuple[str, str]:
    """Name and text of the status of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        reply = call(request, timeout=5, **metadata)
        for _ in reply if hasattr(reply, "__next__") else ():
            pass
    return caught.value.code().name, caught.value.details()


def test_every_call_of_a_stranger_is_refused(arbitrator: ArbitratorProcess) -> None:
    guess = call_metadata(RUN_ID, bytes(104))
    older = (("dynamix-protocol", "2.2"), ("dynamix-run", RUN_ID), ("dynamix-token", TOKEN))
    with grpc.insecure_channel(arbitrator.address) as channel:
        for call in ("Register", "Report", "Heartbeat", "Leave", "Observe", "Plans", "Membership"):
            ask = channel.unary_unary(f"/dynamix.arbitrator.Arbitrator/{call}")
            assert status(ask, b"", metadata=guess)[0] == "UNAUTHENTICATED"
            code, text = status(ask, b"", metadata=older)
            assert code == "UNAUTHENTICATED"
            assert "found 2.2, expected 3.x" in text


def test_a_caller_of_another_version_is_refused(stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "PROTOCOL", (4, 0))
    code, text = status(stub.Heartbeat, pb.HeartbeatRequest())
    assert code == "FAILED_PRECONDITION"
    assert "found 4.0, expected 3.x" in text
    monkeypatch.setattr(auth, "PROTOCOL", (3, 7))
    assert status(stub.Heartbeat, pb.HeartbeatRequest())[0] == "INVALID_ARGUMENT", "a newer minor version is welcome"


def test_a_worker_with_another_token_is_told_so_and_uses_no_plan(arbitrator: ArbitratorProcess) -> None:
    worker = Worker(arbitrator.address, token="guess")
    worker.client.start()
    wait_until(lambda: worker.kinds() == ["degraded"], "the warning")
    detail = worker.events[0][1]["detail"]
    assert f"{arbitrator.address} is not used: what answers does not know the token of this run" in detail
    assert "another DYNAMIX_TOKEN" in detail
    assert worker.client.newest_plan() is None
    assert arbitrator.lines("registered") == []
    worker.client.close(PATIENCE_S)


def test_malformed_calls_are_refused_with_the_field_named(stub: Any, arbitrator: ArbitratorProcess) -> None:
    me = pb.Identity(rank=0, incarnation="life-0")
    negative = convert.record_to_proto(record(samples=-5))
    huge = convert.record_to_proto(record(grad_sq_local=1e308))
    assert status(stub.Heartbeat, pb.HeartbeatRequest(identity=me)) == (
        "NOT_FOUND", "worker 0 is not registered here; register first",
    )  # fmt: skip
    assert status(stub.Plans, pb.PlansRequest(identity=me))[0] == "NOT_FOUND"
    stub.Register(convert.registration_to_proto(registration()), timeout=5)
    for call, request, text in (
        (stub.Report, pb.ReportRequest(identity=me, record=negative), "samples: got -5, expected"),
        (stub.Report, pb.ReportRequest(identity=me, record=huge), "grad_sq_local: got 1e+308, expected"),
        (stub.Report, pb.ReportRequest(identity=me), "iterations: got 0"),
        (stub.Report, pb.ReportRequest(), "incarnation: got 0 characters"),
        (stub.Heartbeat, pb.HeartbeatRequest(identity=me, iteration=-1), "iteration: got -1"),
        (stub.Register, pb.RegisterRequest(), "incarnation: got 0 characters"),
        (stub.Leave, pb.LeaveRequest(identity=pb.Identity(rank=-4, incarnation="x")), "rank: got -4"),
    ):
        code, found = status(call, request)
        assert code == "INVALID_ARGUMENT"
        assert text in found
    too_large = pb.HeartbeatRequest(identity=pb.Identity(incarnation="x" * (message_limit_bytes(3) + 1)))
    assert status(stub.Heartbeat, too_large)[0] == "RESOURCE_EXHAUSTED"
    assert arbitrator.lines("plan", "kept") == []


def test_duplicated_and_reordered_reports_make_one_decision(stub: Any, arbitrator: ArbitratorProcess) -> None:
    for rank in range(3):
        stub.Register(convert.registration_to_proto(registration(rank)), timeout=5)

    def report(rank: int, window: int) -> None:
        identity = pb.Identity(rank=rank, incarnation=f"life-{rank}")
        request = pb.ReportRequest(identity=identity, record=convert.record_to_proto(record(rank, window)))
        stub.Report(request, timeout=5)

    for rank, window in ((0, 1), (0, 0), (1, 0), (0, 0), (2, 0), (2, 0), (0, 1), (1, 0)):
        report(rank, window)
    wait_until(lambda: arbitrator.last_window() == 0, "window 0")
    for rank, window in ((1, 0), (2, 1), (1, 1)):
        report(rank, window)
    wait_until(lambda: arbitrator.last_window() == 1, "window 1")
    assert [line["window"] for line in arbitrator.lines("plan", "kept")] == [0, 1]


def test_a_caller_of_an_earlier_release_gets_an_answer(arbitrator: ArbitratorProcess) -> None:
    with grpc.insecure_channel(arbitrator.address) as channel:
        call = channel.unary_unary("/dynamix.arbitrator.v1.Arbitrator/Register")
        assert status(call, b"")[0] == "UNAUTHENTICATED"
