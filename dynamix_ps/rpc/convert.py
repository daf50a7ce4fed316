"""Protobuf <-> dynamix_ps.messages, and the check of everything that comes in from outside."""

from __future__ import annotations

from typing import Any

from dynamix_ps.messages import Flow, PeerStatus, Plan, Registration, RoleReport, SystemSample, WindowRecord
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc.fields import Range, count, fill, number, one_of, text
from dynamix_ps.rpc.refusals import MalformedMessageError

MAX_FLOWS = 1024  # connections in one report: two per worker in the largest cluster, and room

_SECONDS = Range(0.0, 1e8)
_SECONDS_OR_UNKNOWN = Range(0.0, 1e8, unknown=True)
_FRACTION = Range(0.0, 1.0, unknown=True)
_LOSS = Range(-1e30, 1e30, unknown=True)
_AMOUNT = Range(0.0, 1e18, unknown=True)
_SQUARE = Range(0.0, 1e30, unknown=True)

_SYSTEM = {
    "cpu_ratio": _AMOUNT,
    "cpu_cores": _AMOUNT,
    "throttled": _FRACTION,
    "memory_bytes": _AMOUNT,
    "memory_ratio": _AMOUNT,
    "gpu_utilisation": _FRACTION,
    "gpu_memory_ratio": _FRACTION,
}
_FLOW = {
    "bytes_out": _AMOUNT,
    "bytes_in": _AMOUNT,
    "retransmits": _AMOUNT,
    "busy_s": _AMOUNT,
    "rtt_s": _SECONDS_OR_UNKNOWN,
    "unsent_bytes": _AMOUNT,
    "unread_bytes": _AMOUNT,
}
_COUNTS = {
    "window": 0,
    "first_iteration": 0,
    "iterations": 1,
    "plan_version": 0,
    "batch_size": 0,
    "samples": 0,
    "global_samples": 0,
    "bytes_pushed": 0,
}
_NUMBERS = {
    "duration_s": _SECONDS,
    "compute_s": _SECONDS,
    "push_pull_s": _SECONDS_OR_UNKNOWN,
    "wait_s": _SECONDS_OR_UNKNOWN,
    "input_s": _SECONDS,
    "loss": _LOSS,
    "accuracy": _FRACTION,
    "global_loss": _LOSS,
    "global_accuracy": _FRACTION,
    "grad_sq_local": _SQUARE,
    "grad_sq_global": _SQUARE,
    "grad_norm_std": _SQUARE,
    "accuracy_std": _FRACTION,
    "noise_variance": Range(-1e30, 1e30, unknown=True),  # unbiased estimates can be negative
    "noise_signal": Range(-1e30, 1e30, unknown=True),
    "epoch": _AMOUNT,
    "trained_ratio": _FRACTION,
    "lr_ratio": _FRACTION,
    **_SYSTEM,
    "network_age_s": _AMOUNT,
    "push_bytes_per_s": _AMOUNT,
    "pull_bytes_per_s": _AMOUNT,
    "retransmits_per_s": _AMOUNT,
    "rtt_s": _SECONDS_OR_UNKNOWN,
    "push_busy": _FRACTION,
}
_SOURCES = ("ebpf", "sockdiag", "procfs", "none")
_ROLES = ("worker", "server", "scheduler")
_UNIX_TIME = Range(0.0, 1e11)


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
    """Raises MalformedMessageError if the version or a size is negative, or there is nothing to do for anybody."""
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
    )


def registration_from_proto(request: pb.RegisterRequest) -> Registration:
    """Raises MalformedMessageError for every field that cannot be true."""
    rank, incarnation = identity_from_proto(request.identity)
    return Registration(
        rank=rank,
        incarnation=incarnation,
        host=text("host", request.host),
        pid=count("pid", request.pid),
        plan=plan_from_proto(request.plan),
    )


def record_to_proto(record: WindowRecord) -> pb.WindowRecord:
    """Unknown (NaN) values are left out."""
    message = pb.WindowRecord(flagged=record.flagged, network_source=record.network_source)
    fill(message, record, (*_COUNTS, *_NUMBERS))
    return message


def record_from_proto(rank: int, message: pb.WindowRecord) -> WindowRecord:
    """A checked record of worker `rank`; absent optional fields become NaN.

    Raises:
        MalformedMessageError: a field is negative, not finite or out of its range.
    """
    fields: dict[str, Any] = {name: count(name, getattr(message, name), low) for name, low in _COUNTS.items()}
    fields |= {name: number(name, message, allowed) for name, allowed in _NUMBERS.items()}
    return WindowRecord(rank=rank, flagged=message.flagged, network_source=_source(message.network_source), **fields)


def peer_to_proto(peer: PeerStatus) -> pb.Peer:
    return pb.Peer(rank=peer.rank, iteration=peer.iteration, silent_s=peer.silent_s, alive=peer.alive)


def peer_from_proto(peer: pb.Peer) -> PeerStatus:
    return PeerStatus(rank=peer.rank, iteration=peer.iteration, silent_s=peer.silent_s, alive=peer.alive)


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
    )
    fill(message, report, ("network_age_s",))
    fill(message.system, report.system, _SYSTEM)
    for flow in flows:
        fill(message.flows.add(local=flow.local, remote=flow.remote), flow, _FLOW)
    return message


def role_report_from_proto(message: pb.ObserveRequest) -> RoleReport:
    """A checked report; absent optional fields become NaN.

    Raises:
        MalformedMessageError: a field is negative, not finite or out of its range; there are too many connections;
            the rank does not fit the role.
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
        time_s=number("time_s", message, _UNIX_TIME),
        network_source=_source(message.network_source),
        network_age_s=number("network_age_s", message, _SECONDS_OR_UNKNOWN),
        flows=tuple(_flow(flow) for flow in message.flows),
        system=SystemSample(**{name: number(name, message.system, allowed) for name, allowed in _SYSTEM.items()}),
    )


def _flow(message: pb.Flow) -> Flow:
    numbers = {name: number(name, message, allowed) for name, allowed in _FLOW.items()}
    return Flow(local=text("local", message.local), remote=text("remote", message.remote), **numbers)


def _source(name: str) -> str:
    return one_of("network_source", name or "none", _SOURCES)
