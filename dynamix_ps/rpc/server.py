"""The arbitrator's gRPC server: checks each message, calls the service, and turns refusals into statuses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.messages import PeerStatus, Plan, Registration, RoleReport, WindowRecord
from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc import arbitrator_pb2_grpc as pb_grpc
from dynamix_ps.rpc import convert
from dynamix_ps.rpc.auth import AuthInterceptor
from dynamix_ps.rpc.channel import server_options
from dynamix_ps.rpc.refusals import RefusalError

_Reply = TypeVar("_Reply")


class Service(Protocol):
    """What the server calls in the arbitrator. All but `plans` return at once or raise RefusalError."""

    def register(self, registration: Registration) -> Plan: ...

    def report(self, incarnation: str, record: WindowRecord) -> None: ...

    def heartbeat(self, rank: int, incarnation: str, iteration: int) -> tuple[PeerStatus, ...]: ...

    def leave(self, rank: int, incarnation: str) -> None: ...

    def observe(self, report: RoleReport) -> None: ...

    def plans(self, rank: int, incarnation: str, newest_version: int) -> AsyncIterator[Plan]: ...

    def refused(self, text: str) -> None: ...


class Server:
    """A gRPC server for one service and the health service."""

    def __init__(self, service: Service, run_id: str, token: str, n_workers: int) -> None:
        self._server = grpc.aio.server(
            interceptors=[AuthInterceptor(run_id, token, service.refused)],
            options=server_options(n_workers),
            maximum_concurrent_rpcs=64 + 8 * n_workers,
        )
        self._health = health.HealthServicer()
        pb_grpc.add_ArbitratorServicer_to_server(_Servicer(service), self._server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self, address: str) -> int:
        """Listen on host:port and return the port, which the system chooses if 0 is asked for.

        Raises:
            EnvironmentNotReady: the address is taken or not of this machine.
        """
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            port, reason = 0, f" ({error})"
        else:
            reason = ""
        if port == 0:
            raise EnvironmentNotReady(
                f"arbitrator: cannot listen on {address}{reason}; the port is taken or the address is not of this "
                "machine: free it, or set cluster.arbitrator_port to 0 to have one chosen"
            )
        await self._server.start()
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        return port

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, end the streams, wait for the rest at most `grace_s`."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


class _Servicer(pb_grpc.ArbitratorServicer):
    """Converts and calls. The methods have the names of the .proto file."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterReply:  # noqa: N802
        def answer() -> pb.RegisterReply:
            plan = self._service.register(convert.registration_from_proto(request))
            return pb.RegisterReply(plan=convert.plan_to_proto(plan))

        return await self._answer(answer, context)

    async def Report(self, request: pb.ReportRequest, context: Any) -> pb.ReportReply:  # noqa: N802
        def answer() -> pb.ReportReply:
            rank, incarnation = convert.identity_from_proto(request.identity)
            record = convert.record_from_proto(rank, request.record)
            if request.HasField("observed"):  # before the report, which may close the window
                self._service.observe(convert.role_report_from_proto(request.observed))
            self._service.report(incarnation, record)
            return pb.ReportReply()

        return await self._answer(answer, context)

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatReply:  # noqa: N802
        def answer() -> pb.HeartbeatReply:
            rank, incarnation = convert.identity_from_proto(request.identity)
            peers = self._service.heartbeat(rank, incarnation, convert.iteration_from_proto(request))
            return pb.HeartbeatReply(peers=[convert.peer_to_proto(peer) for peer in peers])

        return await self._answer(answer, context)

    async def Leave(self, request: pb.LeaveRequest, context: Any) -> pb.LeaveReply:  # noqa: N802
        def answer() -> pb.LeaveReply:
            self._service.leave(*convert.identity_from_proto(request.identity))
            return pb.LeaveReply()

        return await self._answer(answer, context)

    async def Observe(self, request: pb.ObserveRequest, context: Any) -> pb.ObserveReply:  # noqa: N802
        def answer() -> pb.ObserveReply:
            self._service.observe(convert.role_report_from_proto(request))
            return pb.ObserveReply()

        return await self._answer(answer, context)

    async def Plans(self, request: pb.PlansRequest, context: Any) -> AsyncIterator[pb.Plan]:  # noqa: N802
        def answer() -> AsyncIterator[Plan]:
            rank, incarnation = convert.identity_from_proto(request.identity)
            return self._service.plans(rank, incarnation, request.newest_version)

        async for plan in await self._answer(answer, context):
            yield convert.plan_to_proto(plan)

    async def _answer(self, answer: Callable[[], _Reply], context: Any) -> _Reply:
        try:
            return answer()
        except RefusalError as error:
            self._service.refused(str(error))
            await context.abort(grpc.StatusCode[error.code], str(error))
            raise  # not reached: abort raises
