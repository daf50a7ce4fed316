"""Protobuf <-> dynamix_ps.messages, and the check of everything that comes in from outside."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dynamix_ps.messages import NAN, PeerStatus, Plan, Registration, WindowRecord
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc.refusals import MalformedMessageError

LARGEST_COUNT = 2**53  # the largest whole number that every reader of our JSON keeps exact
LARGEST_TEXT = 256


@dataclass(frozen=True, slots=True)
class _Range:
    low: float
    high: float
    unknown: bool = False  # may be absent (NaN)


_SECONDS = _Range(0.0, 1e8)
_SECONDS_OR_UNKNOWN = _Range(0.0, 1e8, unknown=True)
_FRACTION = _Range(0.0, 1.0, unknown=True)
_LOSS = _Range(-1e30, 1e30, unknown=True)
_AMOUNT = _Range(0.0, 1e18, unknown=True)
_SQUARE = _Range(0.0, 1e30, unknown=True)

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
    "noise_variance": _Range(-1e30, 1e30, unknown=True),  # unbiased estimates can be negative
    "noise_signal": _Range(-1e30, 1e30, unknown=True),
    "epoch": _AMOUNT,
    "cpu_ratio": _AMOUNT,
    "cpu_cores": _AMOUNT,
    "throttled": _FRACTION,
    "memory_bytes": _AMOUNT,
    "memory_ratio": _AMOUNT,
    "gpu_utilisation": _FRACTION,
    "gpu_memory_ratio": _FRACTION,
    "network_age_s": _AMOUNT,
    "push_bytes_per_s": _AMOUNT,
    "pull_bytes_per_s": _AMOUNT,
    "retransmits_per_s": _AMOUNT,
    "rtt_s": _SECONDS_OR_UNKNOWN,
    "push_busy": _FRACTION,
}
_SOURCES = ("ebpf", "sockdiag", "procfs", "none")


def identity_to_proto(rank: int, incarnation: str) -> pb.Identity:
    return pb.Identity(rank=rank, incarnation=incarnation)


def identity_from_proto(identity: pb.Identity) -> tuple[int, str]:
    """(rank, incarnation). The registry checks whether they are known.

    Raises:
        MalformedMessageError: the rank is negative, or the incarnation empty or too long.
    """
    return _count("rank", identity.rank), _text("incarnation", identity.incarnation)


def plan_to_proto(plan: Plan) -> pb.Plan:
    return pb.Plan(version=plan.version, batch_sizes=plan.batch_sizes)


def plan_from_proto(plan: pb.Plan) -> Plan:
    """Raises MalformedMessageError if the version or a size is negative, or there is nothing to do for anybody."""
    sizes = tuple(_count("plan.batch_sizes", size) for size in plan.batch_sizes)
    if not sizes:
        raise MalformedMessageError("plan.batch_sizes: got none, expected one size per worker")
    if sum(sizes) == 0:
        raise MalformedMessageError(f"plan.batch_sizes: got {list(sizes)}, expected at least one sample in all")
    return Plan(_count("plan.version", plan.version), sizes)


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
        host=_text("host", request.host),
        pid=_count("pid", request.pid),
        plan=plan_from_proto(request.plan),
    )


def record_to_proto(record: WindowRecord) -> pb.WindowRecord:
    """Unknown (NaN) values are left out."""
    message = pb.WindowRecord(flagged=record.flagged, network_source=record.network_source)
    for name in (*_COUNTS, *_NUMBERS):
        value = getattr(record, name)
        if not math.isnan(value):
            setattr(message, name, value)
    return message


def record_from_proto(rank: int, message: pb.WindowRecord) -> WindowRecord:
    """A checked record of worker `rank`; absent optional fields become NaN.

    Raises:
        MalformedMessageError: a field is negative, not finite or out of its range.
    """
    fields: dict[str, Any] = {name: _count(name, getattr(message, name), low) for name, low in _COUNTS.items()}
    fields |= {name: _number(name, message, allowed) for name, allowed in _NUMBERS.items()}
    return WindowRecord(rank=rank, flagged=message.flagged, network_source=_source(message.network_source), **fields)


def peer_to_proto(peer: PeerStatus) -> pb.Peer:
    return pb.Peer(rank=peer.rank, iteration=peer.iteration, silent_s=peer.silent_s, alive=peer.alive)


def peer_from_proto(peer: pb.Peer) -> PeerStatus:
    return PeerStatus(rank=peer.rank, iteration=peer.iteration, silent_s=peer.silent_s, alive=peer.alive)


def iteration_from_proto(request: pb.HeartbeatRequest) -> int:
    """Raises MalformedMessageError if it is negative."""
    return _count("iteration", request.iteration)


def _source(name: str) -> str:
    if name and name not in _SOURCES:
        raise MalformedMessageError(
            f"network_source: got {name[:LARGEST_TEXT]!r}, expected one of {', '.join(_SOURCES)}"
        )
    return name or "none"


def _count(name: str, value: int, low: int = 0) -> int:
    if not low <= value <= LARGEST_COUNT:
        raise MalformedMessageError(f"{name}: got {value}, expected a whole number of {low}..2^53")
    return value


def _number(name: str, message: pb.WindowRecord, allowed: _Range) -> float:
    if allowed.unknown and not message.HasField(name):
        return NAN
    value: float = getattr(message, name)
    if math.isnan(value) and allowed.unknown:
        return NAN
    if not allowed.low <= value <= allowed.high:
        rule = f"expected a number of {allowed.low:g}..{allowed.high:g}"
        raise MalformedMessageError(f"{name}: got {value!r}, {rule}{' or NaN' if allowed.unknown else ''}")
    return value


def _text(name: str, value: str) -> str:
    if not 0 < len(value) <= LARGEST_TEXT:
        raise MalformedMessageError(f"{name}: got {len(value)} characters, expected 1..{LARGEST_TEXT}")
    return value
