"""Messages of membership as they travel: the kind, and the fields by name as a JSON object. Pure.

A field of a message is a number, a text, a process, an entry, nothing, or several of these. What is received has the
types that the messages declare, or is refused.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, TypeAlias, get_args

from dynamix_ps.bounded_json import built, value_in
from dynamix_ps.membership.messages import (
    AskLeave,
    Broken,
    FromCoordinator,
    Join,
    Leave,
    Process,
    Ready,
    Status,
    Suspect,
    ToCoordinator,
    Waiting,
)
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc.fields import LARGEST_TEXT, count, one_of, text
from dynamix_ps.rpc.refusals import MalformedMessageError

_Kinds: TypeAlias = Mapping[str, type[Any]]  # of messages, by name


def _named(*kinds: type[Any]) -> _Kinds:
    return {kind.__name__.lower(): kind for kind in kinds}


_TOLD: Mapping[str, _Kinds] = {
    "worker": _named(Join, Suspect, Waiting, Broken, Status, Ready, Leave),
    "server": _named(Join, Suspect, Waiting),
    "launcher": _named(Suspect, AskLeave),
}
_SAID = _named(*get_args(FromCoordinator))
_LARGEST_FIELDS = 65_536  # characters: 64 for each of a thousand processes


def pack(message: ToCoordinator | FromCoordinator) -> pb.MembershipMessage:
    """The message as it travels."""
    return pb.MembershipMessage(kind=type(message).__name__.lower(), fields=json.dumps(message, default=_plain))


def unpack_told(message: pb.MembershipMessage, role: str) -> ToCoordinator | None:
    """What this role tells; None is a sign of life. Raises MalformedMessageError unless it may tell such a message."""
    told: ToCoordinator | None = _unpacked(message, _TOLD[role]) if message.kind else None
    return told


def unpack_said(message: pb.MembershipMessage) -> FromCoordinator:
    """What the coordinator says. Raises MalformedMessageError unless it is such a message."""
    said: FromCoordinator = _unpacked(message, _SAID)
    return said


def _unpacked(message: pb.MembershipMessage, kinds: _Kinds) -> Any:
    kind = kinds[one_of("kind", message.kind, tuple(kinds))]
    if len(message.fields) > _LARGEST_FIELDS:
        raise MalformedMessageError(f"{message.kind}: got {len(message.fields)} characters, expected {_LARGEST_FIELDS}")
    try:
        return built(message.kind, value_in(message.fields), kind, LARGEST_TEXT)
    except ValueError as error:
        raise MalformedMessageError(f"{message.kind}: {error}") from error


def sender_to_proto(process: Process) -> pb.MembershipMessage:
    """The first message of a role's stream."""
    return pb.MembershipMessage(sender=pb.Role(**dataclasses.asdict(process)))


def sender_from_proto(message: pb.MembershipMessage) -> Process:
    """Raises MalformedMessageError unless it says who sends."""
    if not message.HasField("sender"):
        raise MalformedMessageError("sender: got nothing, expected it in the first message of a stream")
    role, slot = one_of("role", message.sender.role, tuple(_TOLD)), count("slot", message.sender.slot)
    incarnation = text("incarnation", message.sender.incarnation)
    address = message.sender.address and text("address", message.sender.address)
    state_address = message.sender.state_address and text("state_address", message.sender.state_address)
    return Process(role, slot, incarnation, address, state_address)  # type: ignore[arg-type]  # one_of has checked it


def _plain(value: Any) -> Any:
    """What JSON does not know: sets of processes, and messages, entries and processes."""
    if isinstance(value, frozenset):
        return sorted(value)
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
