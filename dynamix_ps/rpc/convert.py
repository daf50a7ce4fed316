"""Conversion between protobuf and dynamix_ps.messages, with checks of everything that is received.

Numbers are sent under the names of their fields. The field tables of messages.py give names and ranges.
"""

from __future__ import annotations

import math
from typing import Any

from dynamix_ps.field_table import SECONDS, Quantity
from dynamix_ps.messages import (
    FLOW,
    SYSTEM,
    WINDOW,
    Flow,
    PeerStatus,
    Plan,
    Registration,
    RoleReport,
    SystemSample,
    WindowRecord,
)
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc.fields import count, known_values, number, numbers, one_of, text
from dynamix_ps.rpc.refusals import MalformedMessageError

MAX_FLOWS = 1024  # connections in one report: two per worker in the largest cluster, and spare ones

_COUNTS = tuple(field for field in WINDOW.values() if field.kind is int and field.name != "rank")
_VALUES = tuple(field for field in WINDOW.values() if field.kind is float)
_SYSTEM = tuple(SYSTEM.values())
_FLOW = tuple(FLOW.values())
_SOURCES = ("ebpf", "sockdiag", "procfs", "none")
_ROLES = ("worker", "server", "scheduler")
_UNIX_TIME = Quantity("s", 0.0, 1e11)


def identity_to_proto(rank: int, incarnation: str) -> pb.Identity:
    return pb.Identity(rank=rank, incarnation=incarnation)


def identity_from_proto(identity: pb.Identity) -> tuple[int, str]:
    """(rank, incarnation). The registry checks whether they are known.

    Raises:
        MalformedMessageError: the rank is negative, or the incarnation empty or too long.
    """
    return count("rank", identity.rank), text("incarnation", identity.incarnation)


def plan_to_proto(plan: Plan) -> pb.Plan:
    return pb.Plan(version=plan.version, batch_sizes=plan.batch_sizes)


def plan_from_proto(plan: pb.Plan) -> Plan:
    """Raises MalformedMessageError if a number is negative or not finite, or all sizes are 0."""
    sizes = tuple(count("plan.batch_sizes", size) for size in plan.batch_sizes)
    if not sizes:
        raise MalformedMessageError("plan.batch_sizes: got none, expected one size per worker")
    if sum(sizes) == 0:
        raise MalformedMessageError(f"plan.batch_sizes: got {list(sizes)}, expected at least one sample in all")
    return Plan(count("plan.version", plan.version), sizes)


def registration_to_proto(registration: Registration) -> pb.RegisterRequest:
    return pb.RegisterRequest(
        identity=identity_to_proto(registration.rank, registration.incarnation),
        host=registration.host,
        pid=registration.pid,
        plan=plan_to_proto(registration.plan),
        work=registration.work,
    )


def registration_from_proto(request: pb.RegisterRequest) -> Registration:
    """Raises MalformedMessageError for a field that is missing or out of its range."""
    rank, incarnation = identity_from_proto(request.identity)
    return Registration(
        rank=rank,
        incarnation=incarnation,
        host=text("host", request.host),
        pid=count("pid", request.pid),
        plan=plan_from_proto(request.plan),
        work=text("work", request.work) if request.work else "",
    )


def record_to_proto(record: WindowRecord) -> pb.WindowRecord:
    """Unknown (NaN) values are left out."""
    counts = {field.name: getattr(record, field.name) for field in _COUNTS}
    return pb.WindowRecord(
        flagged=record.flagged, network_source=record.network_source, values=known_values(record, _VALUES), **counts
    )


def record_from_proto(rank: int, message: pb.WindowRecord) -> WindowRecord:
    """A checked record of worker `rank`; absent values that may be unknown become NaN.

    Raises:
        MalformedMessageError: a field is not finite or out of its range, or one that cannot be unknown is absent.
    """
    values: dict[str, Any] = {
        field.name: count(field.name, getattr(message, field.name), field.metric.quantity.low) for field in _COUNTS
    }
    values |= numbers(_VALUES, message.values)
    return WindowRecord(rank=rank, flagged=message.flagged, network_source=_source(message.network_source), **values)


def peer_to_proto(peer: PeerStatus) -> pb.Peer:
    return pb.Peer(rank=peer.rank, iteration=peer.iteration, silent_s=peer.silent_s, alive=peer.alive)


def peer_from_proto(peer: pb.Peer) -> PeerStatus:
    """Raises MalformedMessageError for a field that is out of its range."""
    return PeerStatus(
        rank=count("rank", peer.rank),
        iteration=count("iteration", peer.iteration),
        silent_s=number("silent_s", peer.silent_s, SECONDS),
        alive=peer.alive,
    )


def iteration_from_proto(request: pb.HeartbeatRequest) -> int:
    """Raises MalformedMessageError if it is negative."""
    return count("iteration", request.iteration)


def role_report_to_proto(report: RoleReport) -> pb.ObserveRequest:
    """Unknown (NaN) values are left out; of more than MAX_FLOWS connections the busiest are kept."""
    flows = report.flows
    if len(flows) > MAX_FLOWS:
        flows = tuple(sorted(flows, key=lambda flow: flow.bytes_out + flow.bytes_in, reverse=True)[:MAX_FLOWS])
    message = pb.ObserveRequest(
        name=report.name,
        role=report.role,
        rank=report.rank,
        host=report.host,
        pid=report.pid,
        time_s=report.time_s,
        network_source=report.network_source,
        network_age_s=None if math.isnan(report.network_age_s) else report.network_age_s,
        system=known_values(report.system, _SYSTEM),
    )
    for flow in flows:
        message.flows.add(local=flow.local, remote=flow.remote, **known_values(flow, _FLOW))
    return message


def role_report_from_proto(message: pb.ObserveRequest) -> RoleReport:
    """A checked report; absent values become NaN.

    Raises:
        MalformedMessageError: a field is not finite or out of its range; there are too many connections; the rank does
            not fit the role.
    """
    role = one_of("role", message.role, _ROLES)
    rank = count("rank", message.rank, low=0 if role == "worker" else -1)
    if role != "worker" and rank != -1:
        raise MalformedMessageError(f"rank: got {rank} for a {role}, expected -1: only workers have one")
    if len(message.flows) > MAX_FLOWS:
        raise MalformedMessageError(f"flows: got {len(message.flows)} connections, expected at most {MAX_FLOWS}")
    return RoleReport(
        name=text("name", message.name),
        role=role,
        rank=rank,
        host=text("host", message.host),
        pid=count("pid", message.pid),
        time_s=number("time_s", message.time_s, _UNIX_TIME),
        network_source=_source(message.network_source),
        network_age_s=number(
            "network_age_s",
            message.network_age_s if message.HasField("network_age_s") else None,
            SECONDS,
            may_be_unknown=True,
        ),
        flows=tuple(_flow(flow) for flow in message.flows),
        system=SystemSample(**numbers(_SYSTEM, message.system)),
    )


def _flow(message: pb.Flow) -> Flow:
    values = {field.name: getattr(message, field.name) for field in _FLOW if message.HasField(field.name)}
    return Flow(local=text("local", message.local), remote=text("remote", message.remote), **numbers(_FLOW, values))


def _source(name: str) -> str:
    return one_of("network_source", name or "none", _SOURCES)
