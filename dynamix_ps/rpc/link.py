"""One connection to the arbitrator. Every call has a deadline, and both sides prove that they know the run's token."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator

import grpc

from dynamix_ps.messages import PeerStatus, Plan, Registration, RoleReport, WindowRecord
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc import arbitrator_pb2_grpc as pb_grpc
from dynamix_ps.rpc import convert
from dynamix_ps.rpc.access import ArbitratorAccess
from dynamix_ps.rpc.encryption import open_channel
from dynamix_ps.rpc.proven_channel import FINAL, ProvenChannel, UnprovenError

STREAM_DEADLINES = 15  # a stream of plans ends after this many `rpc_s`, and the client opens another

_TRANSIENT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.CANCELLED,  # by a server that stops, or on which too many calls wait
    grpc.StatusCode.UNAUTHENTICATED,  # by an arbitrator that has started anew; or what answers is not the arbitrator
)


def is_transient(error: grpc.RpcError) -> bool:
    """Whether the same call may succeed later: the arbitrator is away, slow or overrun, or the worker must register
    again."""
    return error.code() in _TRANSIENT


def is_final(error: grpc.RpcError) -> bool:
    """Whether every repetition of the call is refused too."""
    return error.code() in FINAL


def is_impostor(error: grpc.RpcError) -> bool:
    """Whether what answers has not proven that it is the arbitrator of this run."""
    return isinstance(error, UnprovenError)


def reason(error: grpc.RpcError) -> str:
    """Status and text of a failed call, in one short line."""
    text = " ".join((error.details() or "no details").split())
    return f"{error.code().name}: {text[:300]}"


class _Line:
    """A channel on which both sides prove who they are. `close` sets `closed` and ends calls under way."""

    def __init__(self, access: ArbitratorAccess, n_workers: int) -> None:
        self._rpc_s = access.timeouts.rpc_s
        self._channel = open_channel(access.address, access.certificates, n_workers)
        proven = ProvenChannel(self._channel, access.run_id, access.token)
        self._stub = pb_grpc.ArbitratorStub(proven)  # type: ignore[no-untyped-call]
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()
        self._channel.close()


class ObserverLink(_Line):
    """A connection for the reports of any role. Calls raise grpc.RpcError."""

    def observe(self, report: RoleReport) -> None:
        request = convert.role_report_to_proto(report)
        try:
            self._stub.Observe(request, timeout=self._rpc_s)
        except ValueError:  # a channel that was just closed raises it
            if not self.closed.is_set():
                raise


class Link(_Line):
    """A connection of one worker. Calls raise grpc.RpcError."""

    def __init__(self, access: ArbitratorAccess, registration: Registration) -> None:
        super().__init__(access, len(registration.plan.batch_sizes))
        self._registration = registration
        self._identity = convert.identity_to_proto(registration.rank, registration.incarnation)

    def register(self, newest: Plan | None) -> Plan:
        """Register with the newest plan the worker holds; return the arbitrator's newest."""
        registration = dataclasses.replace(self._registration, plan=newest or self._registration.plan)
        request = convert.registration_to_proto(registration)
        reply = self._stub.Register(request, timeout=self._rpc_s)
        return convert.plan_from_proto(reply.plan)

    def report(self, record: WindowRecord, observed: RoleReport | None = None) -> None:
        request = pb.ReportRequest(identity=self._identity, record=convert.record_to_proto(record))
        if observed is not None:
            request.observed.CopyFrom(convert.role_report_to_proto(observed))
        self._stub.Report(request, timeout=self._rpc_s)

    def heartbeat(self, iteration: int) -> tuple[PeerStatus, ...]:
        request = pb.HeartbeatRequest(identity=self._identity, iteration=iteration)
        reply = self._stub.Heartbeat(request, timeout=self._rpc_s)
        return tuple(convert.peer_from_proto(peer) for peer in reply.peers)

    def leave(self) -> None:
        self._stub.Leave(pb.LeaveRequest(identity=self._identity), timeout=self._rpc_s)

    def plans(self, newest: Plan | None) -> Iterator[Plan]:
        """Plans newer than `newest`, until the stream's deadline."""
        version = (newest or self._registration.plan).version
        request = pb.PlansRequest(identity=self._identity, newest_version=version)
        deadline_s = STREAM_DEADLINES * self._rpc_s
        try:
            for plan in self._stub.Plans(request, timeout=deadline_s):
                yield convert.plan_from_proto(plan)
        except ValueError:  # a channel that was just closed raises it
            if not self.closed.is_set():
                raise


class MemberLink(_Line):
    """A connection for membership, of any role. Calls raise grpc.RpcError."""

    def messages(self, requests: Iterator[pb.MembershipMessage]) -> Iterator[pb.MembershipMessage]:
        """Send `requests` as they come, and return what the coordinator says, until the stream's deadline.

        The end of `requests` ends the stream when the coordinator has taken all of them in.
        """
        deadline_s = STREAM_DEADLINES * self._rpc_s
        try:
            yield from self._stub.Membership(requests, timeout=deadline_s)
        except ValueError:  # a channel that was just closed raises it
            if not self.closed.is_set():
                raise
