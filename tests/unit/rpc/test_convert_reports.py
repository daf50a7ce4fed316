"""Reports of roles over the wire: transferred exactly, or refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.messages import Flow, RoleReport, SystemSample
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc import convert
from dynamix_ps.rpc.channel import message_limit_bytes
from dynamix_ps.rpc.refusals import MalformedMessageError

NAN = math.nan
FLOW = Flow("10.0.0.1:40000", "[fe80::1]:9000", 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)
SYSTEM = SystemSample(0.5, 2.0, 0.25, 1e9, 0.5, 0.75, 0.125)
REPORT = RoleReport("worker-3", "worker", 3, "host", 4711, 1.7e9, "sockdiag", 0.25, (FLOW,), SYSTEM)


def over_the_wire(report: RoleReport) -> RoleReport:
    sent = convert.role_report_to_proto(report).SerializeToString()
    return convert.role_report_from_proto(pb.ObserveRequest.FromString(sent))


@pytest.mark.parametrize(
    "changes", [{}, {"role": "server", "rank": -1, "name": "server-0"}, {"flows": ()}, {"flows": (FLOW,) * 3}]
)
def test_a_report_survives_the_wire(changes: dict[str, Any]) -> None:
    report = dataclasses.replace(REPORT, **changes)
    assert over_the_wire(report) == report


def test_unknown_stays_unknown_and_zero_stays_zero() -> None:
    for value in (NAN, 0.0):
        flow = Flow("a:1", "*", *[value] * 7)
        report = dataclasses.replace(
            REPORT, flows=(flow,), system=SystemSample(*[value] * 7), network_age_s=value, network_source="none"
        )
        arrived = over_the_wire(report)
        assert repr(arrived) == repr(report)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"role": "arbitrator"}, "role: got 'arbitrator', expected one of worker, server, scheduler"),
        ({"role": ""}, "role: got ''"),
        ({"rank": -1}, "rank: got -1, expected a whole number of 0"),
        ({"role": "server"}, "rank: got 3 for a server, expected -1"),
        ({"role": "scheduler", "rank": -2}, "rank: got -2"),
        ({"rank": 2**60}, "rank: got"),
        ({"name": ""}, "name: got 0 characters"),
        ({"name": "x" * 300}, "name: got 300 characters"),
        ({"host": ""}, "host: got 0 characters"),
        ({"pid": -1}, "pid: got -1"),
        ({"time_s": -1.0}, "time_s: got -1.0"),
        ({"time_s": math.inf}, "time_s: got inf"),
        ({"network_age_s": -0.5}, "network_age_s: got -0.5"),
        ({"network_source": "guess"}, "network_source: got 'guess', expected one of ebpf"),
        ({"flows": (dataclasses.replace(FLOW, local=""),)}, "local: got 0 characters"),
        ({"flows": (dataclasses.replace(FLOW, remote="x" * 257),)}, "remote: got 257 characters"),
        ({"flows": (dataclasses.replace(FLOW, bytes_in=-1.0),)}, "bytes_in: got -1.0"),
        ({"flows": (dataclasses.replace(FLOW, rtt_s=math.inf),)}, "rtt_s: got inf"),
        ({"system": dataclasses.replace(SYSTEM, throttled=1.5)}, "throttled: got 1.5"),
        ({"system": dataclasses.replace(SYSTEM, memory_bytes=-1.0)}, "memory_bytes: got -1.0"),
    ],
)
def test_what_cannot_be_true_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(MalformedMessageError) as refused:
        over_the_wire(dataclasses.replace(REPORT, **changes))
    assert text in str(refused.value)
    assert "expected" in str(refused.value)


def test_time_cannot_be_unknown() -> None:
    with pytest.raises(MalformedMessageError, match="time_s: got nan"):
        message = convert.role_report_to_proto(REPORT)
        message.time_s = NAN
        convert.role_report_from_proto(message)


def test_of_too_many_connections_the_busiest_are_sent_and_too_many_are_refused() -> None:
    flows = tuple(Flow(f"[fe80:1234:5678:9abc:def0:1234:5678:{n:x}]:40000", "[::2]:9000", n, n, 0) for n in range(2000))
    report = dataclasses.replace(REPORT, flows=flows)
    message = convert.role_report_to_proto(report)
    assert message.ByteSize() < message_limit_bytes(1)
    arrived = convert.role_report_from_proto(message)
    assert len(arrived.flows) == convert.MAX_FLOWS
    assert min(flow.bytes_out for flow in arrived.flows) == 2000 - convert.MAX_FLOWS
    message.flows.append(message.flows[0])
    with pytest.raises(MalformedMessageError, match=r"flows: got 1025 connections, expected at most 1024"):
        convert.role_report_from_proto(message)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_never_give_anything_but_a_refusal(raw: bytes) -> None:
    try:
        message = pb.ObserveRequest.FromString(raw)
    except Exception:  # the wire layer's own refusal
        return
    try:
        convert.role_report_from_proto(message)
    except MalformedMessageError as error:
        assert "expected" in str(error)
