"""The calls of arbitrator.proto on plain bytes: read the message, check it, call the service, write the reply. Pure.

Whatever the bytes are, a call returns its reply or raises RefusalError.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from dynamix_ps.membership.messages import FromCoordinator, Process, ToCoordinator
from dynamix_ps.messages import PeerStatus, Plan, Registration, RoleReport, WindowRecord
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc import convert, membership_codec
from dynamix_ps.rpc.fields import count
from dynamix_ps.rpc.refusals import MalformedMessageError

_Request = TypeVar("_Request", bound=Message)
_Value = TypeVar("_Value")

_NOTHING: Final = b""  # a reply without fields


class Service(Protocol):
    """What the calls need of the arbitrator. All but `plans` return at once; all raise only RefusalError."""

    def register(self, registration: Registration) -> Plan: ...

    def report(self, incarnation: str, record: WindowRecord) -> None: ...

    def heartbeat(self, rank: int, incarnation: str, iteration: int) -> tuple[PeerStatus, ...]: ...

    def leave(self, rank: int, incarnation: str) -> None: ...

    def observe(self, report: RoleReport) -> None: ...

    def plans(self, rank: int, incarnation: str, newest_version: int) -> AsyncIterator[Plan]: ...

    def refused(self, text: str) -> None: ...


class Membership(Protocol):
    """The coordinator of an elastic job."""

    def membership(
        self, sender: Process, messages: AsyncIterator[ToCoordinator | None]
    ) -> AsyncIterator[FromCoordinator]:
        """What it says to `sender`; `messages`, where None is a sign of life, is what that tells.

        Raises only RefusalError.
        """
        ...


class Calls:
    """The calls of one service. Each takes the bytes of its request. `coordinator`: none: the job is not elastic."""

    def __init__(self, service: Service, coordinator: Membership | None = None) -> None:
        self._service, self._coordinator = service, coordinator
        self._peers = _Newest(_heartbeat_reply)
        self._plan = _Newest(convert.plan_to_proto)

    @property
    def unary(self) -> Mapping[str, Callable[[bytes], bytes]]:
        """The calls with one reply, by their names in arbitrator.proto."""
        return {
            "Register": self.register,
            "Report": self.report,
            "Heartbeat": self.heartbeat,
            "Leave": self.leave,
            "Observe": self.observe,
        }

    def register(self, message: bytes) -> bytes:
        registration = convert.registration_from_proto(_read(pb.RegisterRequest, message))
        plan = convert.plan_to_proto(self._service.register(registration))
        return pb.RegisterReply(plan=plan).SerializeToString()

    def report(self, message: bytes) -> bytes:
        request = _read(pb.ReportRequest, message)
        rank, incarnation = convert.identity_from_proto(request.identity)
        record = convert.record_from_proto(rank, request.record)
        if request.HasField("observed"):  # before the report, which may close the window
            self._service.observe(convert.role_report_from_proto(request.observed))
        self._service.report(incarnation, record)
        return _NOTHING

    def heartbeat(self, message: bytes) -> bytes:
        request = _read(pb.HeartbeatRequest, message)
        rank, incarnation = convert.identity_from_proto(request.identity)
        return self._peers.made_of(self._service.heartbeat(rank, incarnation, convert.iteration_from_proto(request)))

    def leave(self, message: bytes) -> bytes:
        request = _read(pb.LeaveRequest, message)
        self._service.leave(*convert.identity_from_proto(request.identity))
        return _NOTHING

    def observe(self, message: bytes) -> bytes:
        self._service.observe(convert.role_report_from_proto(_read(pb.ObserveRequest, message)))
        return _NOTHING

    async def plans(self, message: bytes) -> AsyncIterator[bytes]:
        request = _read(pb.PlansRequest, message)
        rank, incarnation = convert.identity_from_proto(request.identity)
        newest_version = count("newest_version", request.newest_version)
        async for plan in self._service.plans(rank, incarnation, newest_version):
            yield self._plan.made_of(plan)

    async def membership(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        packed = (_read(pb.MembershipMessage, message) async for message in messages)
        first = await anext(packed, pb.MembershipMessage())
        sender = membership_codec.sender_from_proto(first)
        told = (membership_codec.unpack_told(message, sender.role) async for message in packed)
        if self._coordinator is None:
            raise MalformedMessageError("membership: this job is not elastic; set elastic.min_workers")
        async for message in self._coordinator.membership(sender, told):
            yield membership_codec.pack(message).SerializeToString()


def _heartbeat_reply(peers: tuple[PeerStatus, ...]) -> pb.HeartbeatReply:
    return pb.HeartbeatReply(peers=[convert.peer_to_proto(peer) for peer in peers])


class _Newest(Generic[_Value]):
    """The bytes of the newest value. One value goes to hundreds of workers, and its bytes are made once."""

    def __init__(self, make: Callable[[_Value], Message]) -> None:
        self._make = make
        self._last: tuple[_Value, bytes] | None = None

    def made_of(self, value: _Value) -> bytes:
        if self._last is None or self._last[0] is not value:
            self._last = value, self._make(value).SerializeToString()
        return self._last[1]


def _read(kind: type[_Request], message: bytes) -> _Request:
    """Raises MalformedMessageError if these are not the bytes of such a message."""
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise MalformedMessageError(
            f"the bytes are not a {kind.DESCRIPTOR.name}; install the same dynamix_ps on all machines"
        ) from error
