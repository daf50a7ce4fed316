"""Whatever a caller with the token sends, a call returns its reply or is refused."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamix_ps.messages import LARGEST_VERSION, WINDOW, Plan
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc import convert
from dynamix_ps.rpc.calls import Calls
from dynamix_ps.rpc.refusals import MalformedMessageError, RefusalError
from tests.control_plane import record, registration
from tests.unit.arbitrator.service_bench import Bench, Scripted

WHOLE = st.one_of(st.integers(-2, 70), st.integers(-(2**63), 2**63 - 1), st.just(2**24))
REAL = st.one_of(st.floats(), st.floats(0, 10))
TEXT = st.one_of(st.sampled_from(["life-0", "life-1", "worker", "server", "none", "ebpf"]), st.text(max_size=300))
VALUES = st.dictionaries(st.one_of(st.sampled_from(sorted(WINDOW)), TEXT), REAL, max_size=40)

identity = st.builds(pb.Identity, rank=WHOLE, incarnation=TEXT)
plan = st.builds(pb.Plan, version=WHOLE, batch_sizes=st.one_of(st.just([64, 64, 64]), st.lists(WHOLE, max_size=5)))
flow = st.builds(pb.Flow, local=TEXT, remote=TEXT, bytes_out=REAL, rtt_s=REAL)
observed = st.builds(
    pb.ObserveRequest,
    name=TEXT,
    role=TEXT,
    rank=WHOLE,
    host=TEXT,
    pid=WHOLE,
    time_s=REAL,
    network_source=TEXT,
    network_age_s=REAL,
    flows=st.lists(flow, max_size=3),
    system=VALUES,
)


@st.composite
def records(draw: st.DrawFn) -> pb.WindowRecord:
    """A right record with some fields changed, so that not all are refused for the first field."""
    message = convert.record_to_proto(record(draw(st.integers(0, 2)), draw(st.integers(0, 9))))
    counts = [field.name for field in WINDOW.values() if field.kind is int and field.name != "rank"]
    for name, value in draw(st.dictionaries(st.sampled_from(counts), WHOLE, max_size=3)).items():
        setattr(message, name, value)
    for name, value in draw(VALUES).items():
        message.values[name] = value
    return message


requests = st.one_of(
    st.tuples(st.just("Register"), st.builds(pb.RegisterRequest, identity=identity, host=TEXT, pid=WHOLE, plan=plan)),
    st.tuples(st.just("Report"), st.builds(pb.ReportRequest, identity=identity, record=records(), observed=observed)),
    st.tuples(st.just("Heartbeat"), st.builds(pb.HeartbeatRequest, identity=identity, iteration=WHOLE)),
    st.tuples(st.just("Leave"), st.builds(pb.LeaveRequest, identity=identity)),
    st.tuples(st.just("Observe"), observed),
    st.tuples(st.just("Plans"), st.builds(pb.PlansRequest, identity=identity, newest_version=WHOLE)),
)


def call(calls: Calls, name: str, message: bytes) -> None:
    """Make a call, and take what a stream has at once."""

    async def first() -> None:
        stream = calls.plans(message)
        taking = asyncio.ensure_future(anext(stream))
        await asyncio.wait((taking,), timeout=0)
        taking.cancel()
        await asyncio.wait((taking,))
        if not taking.cancelled() and (error := taking.exception()) is not None:
            raise error

    if name == "Plans":
        asyncio.run(first())
    else:
        calls.unary[name](message)


@pytest.mark.slow
@given(st.lists(requests, min_size=1, max_size=12))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_message_is_answered_or_refused(tmp_path_factory: Any, sent: list[tuple[str, Any]]) -> None:
    bench = Bench(tmp_path_factory.mktemp("run"), Scripted(*[(64, 64, 64)] * 20))
    bench.register_all()
    calls = Calls(bench.arbitrator)
    for name, message in sent:
        try:
            call(calls, name, message.SerializeToString())
        except RefusalError as refused:
            assert len(str(refused)) < 1000
        asyncio.run(bench.arbitrator.step())
        assert 0 <= bench.plan.version <= LARGEST_VERSION
        assert all(32 <= size <= 1024 for size in bench.plan.batch_sizes)


@given(st.sampled_from(["Register", "Report", "Heartbeat", "Leave", "Observe", "Plans"]), st.binary(max_size=200))
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_bytes_are_answered_or_refused(tmp_path_factory: Any, name: str, message: bytes) -> None:
    bench = Bench(tmp_path_factory.mktemp("run"), Scripted())
    try:
        call(Calls(bench.arbitrator), name, message)
    except RefusalError:
        return
    assert name not in ("Report", "Heartbeat", "Leave", "Plans"), "nobody is registered"


def test_a_text_has_characters_that_can_be_printed(tmp_path: Path) -> None:
    me = convert.registration_to_proto(registration())
    me.host = "\x1b[31mred"
    with pytest.raises(MalformedMessageError, match=r"host: got '.x1b"):
        Calls(Bench(tmp_path, Scripted()).arbitrator).register(me.SerializeToString())


async def test_a_wrong_window_number_costs_no_decision(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted((32, 64, 128)))
    bench.register_all()
    bench.report([record(0, 2**53)])
    bench.now_s += 1e6
    for rank in range(3):
        bench.arbitrator.heartbeat(rank, f"life-{rank}", 1)
    await bench.window(0, Plan(0, (64, 64, 64)))
    assert bench.plan == Plan(1, (32, 64, 128))


def test_the_bytes_for_all_workers_are_made_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Scripted())
    bench.register_all()
    calls = Calls(bench.arbitrator)

    def beat(rank: int) -> bytes:
        identity = convert.identity_to_proto(rank, f"life-{rank}")
        return calls.heartbeat(pb.HeartbeatRequest(identity=identity, iteration=rank + 1).SerializeToString())

    first = beat(0)
    assert beat(1) is first
    assert [peer.iteration for peer in pb.HeartbeatReply.FromString(first).peers] == [1, 0, 0]
    bench.now_s += 1.0
    assert [peer.iteration for peer in pb.HeartbeatReply.FromString(beat(2)).peers] == [1, 2, 3]


def test_peers_of_a_lying_arbitrator_are_refused() -> None:
    for peer in (pb.Peer(rank=-1), pb.Peer(iteration=-1), pb.Peer(silent_s=math.inf)):
        with pytest.raises(MalformedMessageError):
            convert.peer_from_proto(peer)
