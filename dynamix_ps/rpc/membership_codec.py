"""Messages of membership as they travel: the kind, and the fields by name as a JSON object. Pure.

A field of a message is a number, a text, a process, an entry, nothing, or several of these. What is received has the
types that the messages declare, or is refused.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, get_args

from dynamix_ps.bounded_json import built, value_in
from dynamix_ps.membership.messages import FromCoordinator, Process, ToCoordinator
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc.fields import LARGEST_TEXT, count, one_of, text
from dynamix_ps.rpc.refusals import MalformedMessageError

ROLES = ("worker", "server", "launcher")
_TOLD: Mapping[str, type[Any]] = {kind.__name__.lower(): kind for kind in get_args(ToCoordinator)}
_SAID: Mapping[str, type[Any]] = {kind.__name__.lower(): kind for kind in get_args(FromCoordinator)}
_LARGEST_FIELDS = 65_536  # characters: 64 for each of a thousand processes


def pack(message: ToCoordinator | FromCoordinator) -> pb.MembershipMessage:
    """The message as it travels."""
    fields = {field.name: _plain(getattr(message, field.name)) for field in dataclasses.fields(message)}
    return pb.MembershipMessage(kind=type(message).__name__.lower(), fields=json.dumps(fields))


def unpack_told(message: pb.MembershipMessage) -> ToCoordinator | None:
    """What a role tells; None is a sign of life. Raises MalformedMessageError unless it is such a message."""
    told: ToCoordinator | None = _unpacked(message, _TOLD) if message.kind else None
    return told


def unpack_said(message: pb.MembershipMessage) -> FromCoordinator:
    """What the coordinator says. Raises MalformedMessageError unless it is such a message."""
    said: FromCoordinator = _unpacked(message, _SAID)
    return said


def _unpacked(message: pb.MembershipMessage, kinds: Mapping[str, type[Any]]) -> Any:
    kind = kinds[one_of("kind", message.kind, tuple(kinds))]
    if len(message.fields) > _LARGEST_FIELDS:
        raise MalformedMessageError(f"{message.kind}: got {len(message.fields)} characters, expected {_LARGEST_FIELDS}")
    try:
        return built(message.kind, value_in(message.fields), kind, LARGEST_TEXT)
    except ValueError as error:
        raise MalformedMessageError(f"{message.kind}: {error}") from error


def sender_to_proto(process: Process) -> pb.MembershipMessage:
    """The first message of a role's stream."""
    role = pb.Role(
        role=process.role,
        slot=process.slot,
        incarnation=process.incarnation,
        address=process.address,
        state_address=process.state_address,
    )
    return pb.MembershipMessage(sender=role)


def sender_from_proto(message: pb.MembershipMessage) -> Process:
    """Raises MalformedMessageError unless it says who sends."""
    if not message.HasField("sender"):
        raise MalformedMessageError("sender: got nothing, expected it in the first message of a stream")
    role, slot = one_of("role", message.sender.role, ROLES), count("slot", message.sender.slot)
    incarnation = text("incarnation", message.sender.incarnation)
    address = message.sender.address and text("address", message.sender.address)
    state_address = message.sender.state_address and text("state_address", message.sender.state_address)
    return Process(role, slot, incarnation, address, state_address)  # type: ignore[arg-type]  # one_of has checked it


def _plain(value: Any) -> Any:
    """In JSON's types."""
    if isinstance(value, frozenset | tuple):
        return [_plain(one) for one in (sorted(value) if isinstance(value, frozenset) else value)]
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
