"""Messages of membership arrive as they were sent, and nothing else does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

import pytest

from dynamix_ps.membership.messages import (
    AskLeave,
    Broken,
    Ended,
    Enter,
    Entry,
    Finish,
    Freeze,
    FromCoordinator,
    Join,
    Leave,
    LeaveAsked,
    MayPush,
    Process,
    Ready,
    Refused,
    Resume,
    Status,
    Suspect,
    ToCoordinator,
    Waiting,
)
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc.membership_codec import (
    pack,
    sender_from_proto,
    sender_to_proto,
    unpack_said,
    unpack_told,
)
from dynamix_ps.rpc.refusals import MalformedMessageError

WORKER, SERVER = Process("worker", 2, "abc", "host:1", "host:2"), Process("server", 0, "def")
BOTH = frozenset({WORKER, SERVER})
TOLD: Mapping[str, tuple[ToCoordinator, ...]] = {
    "worker": (Join(), Suspect(WORKER), Waiting(BOTH), Broken(3), Status(3, 812), Status(3, None), Ready(), Leave()),
    "server": (Join(), Suspect(WORKER), Waiting(frozenset())),
    "launcher": (Suspect(WORKER), AskLeave(WORKER, 1)),
}
SAID: tuple[FromCoordinator, ...] = (
    Freeze(3),
    LeaveAsked(1),
    Finish("2 workers are left"),
    MayPush(frozenset({WORKER})),
    Resume(3, 812, frozenset({WORKER})),
    Resume(3, 812, BOTH, frozenset({WORKER}), BOTH, (Entry(1, WORKER), Entry(2, SERVER))),
    Enter(Entry(7, WORKER)),
    Refused(3, "replaced"),
    Ended("the job is over"),
)


def message(kind: str, fields: Any) -> pb.MembershipMessage:
    return pb.MembershipMessage(kind=kind, fields=fields if isinstance(fields, str) else json.dumps(fields))


def test_all_messages_arrive_as_they_were_sent() -> None:
    for role, messages in TOLD.items():
        for told in messages:
            assert unpack_told(pb.MembershipMessage.FromString(pack(told).SerializeToString()), role) == told
    for said in SAID:
        arrived = unpack_said(pb.MembershipMessage.FromString(pack(said).SerializeToString()))
        assert arrived == said
        assert isinstance(said, Resume) is isinstance(arrived, Resume)
    assert {type(one) for told in TOLD.values() for one in told} == set(get_args(ToCoordinator))
    assert {type(one) for one in SAID} == set(get_args(FromCoordinator))


def test_an_empty_kind_is_a_sign_of_life_of_a_role_alone() -> None:
    assert unpack_told(pb.MembershipMessage(), "worker") is None
    with pytest.raises(MalformedMessageError):
        unpack_said(pb.MembershipMessage())


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("resume", {}),  # the other direction
        ("askleave", pack(AskLeave(WORKER, 1)).fields),  # of a launcher
        ("status", "no JSON"),
        ("status", "3"),
        ("status", {"generation": 3}),
        ("status", {"generation": "3", "first_incomplete": 1}),
        ("status", {"generation": True, "first_incomplete": 1}),
        ("status", {"generation": -1, "first_incomplete": 1}),
        ("status", {"generation": 3, "first_incomplete": 1, "more": 1}),
        ("suspect", {"process": None}),
        ("suspect", {"process": {"role": "king", "slot": 0, "incarnation": "a"}}),
        ("suspect", {"process": {"role": "worker", "slot": 0, "incarnation": "a" * 257}}),
        ("waiting", {"processes": {"role": "worker"}}),
        ("waiting", {"processes": [3]}),
        ("join", "{" + " " * 70_000 + "}"),
        ("waiting", "[" * 60_000),
        ("status", '{"generation": 1, "first_incomplete": 1e400}'),
    ],
)
def test_what_is_no_message_is_refused(kind: str, fields: Any) -> None:
    with pytest.raises(MalformedMessageError):
        unpack_told(message(kind, fields), "worker")


def test_the_first_message_says_who_sends() -> None:
    for sender in (WORKER, SERVER):
        found = sender_from_proto(sender_to_proto(sender))
        assert (found, found.address, found.state_address) == (sender, sender.address, sender.state_address)
    for role, slot, incarnation in (("king", 0, "a"), ("worker", -1, "a"), ("worker", 0, "")):
        wrong = pb.MembershipMessage(sender=pb.Role(role=role, slot=slot, incarnation=incarnation))
        with pytest.raises(MalformedMessageError):
            sender_from_proto(wrong)
    with pytest.raises(MalformedMessageError, match="sender: got nothing"):
        sender_from_proto(pack(Join()))
