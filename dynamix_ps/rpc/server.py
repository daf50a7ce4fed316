"""The arbitrator's gRPC server: who may call (auth.py), how much anybody can take up (channel.py), and proofs of all
messages (session.py). The calls themselves are in calls.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from dynamix_ps.certificates import Certificates
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.rpc.auth import Authentication, Handler, refuse
from dynamix_ps.rpc.calls import Calls, Membership, Service
from dynamix_ps.rpc.channel import server_options, session_limit
from dynamix_ps.rpc.encryption import add_port
from dynamix_ps.rpc.refusals import RefusalError
from dynamix_ps.rpc.session import Call, Sessions

_SERVICE = "/dynamix.arbitrator.Arbitrator/"  # as in arbitrator.proto


class RpcServer:
    """A gRPC server for one service. With certificates, it serves callers that have one of the same authority.

    `coordinator`: of an elastic job.
    """

    def __init__(
        self,
        service: Service,
        run_id: str,
        token: str,
        n_workers: int,
        certificates: Certificates | None = None,
        coordinator: Membership | None = None,
    ) -> None:
        self._service, self._certificates = service, certificates
        self._calls = Calls(service, coordinator)
        self._unary = self._calls.unary
        sessions = Sessions(token, session_limit(n_workers))
        self._server = grpc.aio.server(
            interceptors=[Authentication(run_id, sessions, self._handler, service.refused)],
            options=server_options(n_workers),
        )

    async def start(self, address: str) -> int:
        """Listen on host:port and return the port, which the system chooses if 0 is asked for.

        Raises:
            EnvironmentNotReady: the address is taken or not of this machine.
        """
        try:
            port = add_port(self._server, address, self._certificates)
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
        return port

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, end the streams, wait for the rest at most `grace_s`."""
        await self._server.stop(grace_s)

    def _handler(self, method: str, call: Call) -> Handler | None:
        name = method.removeprefix(_SERVICE)
        if name in self._unary:
            return grpc.unary_unary_rpc_method_handler(self._one(self._unary[name], call))
        if name == "Plans":
            return grpc.unary_stream_rpc_method_handler(self._plans(call))
        if name == "Membership":
            return grpc.stream_stream_rpc_method_handler(self._membership(call))
        return None

    def _one(self, answered: Callable[[bytes], bytes], call: Call) -> Any:
        async def answer(message: bytes, context: Any) -> bytes:
            try:
                return call.seal(answered(call.open(message)))
            except RefusalError as error:
                await self._refuse(error, call, context)
                raise  # not reached: abort raises

        return answer

    def _plans(self, call: Call) -> Any:
        async def answer(message: bytes, context: Any) -> AsyncIterator[bytes]:
            try:
                async for reply in self._calls.plans(call.open(message)):
                    yield call.seal(reply)
            except RefusalError as error:
                await self._refuse(error, call, context)

        return answer

    def _membership(self, call: Call) -> Any:
        async def answer(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            opened = (call.open(message) async for message in messages)
            try:
                async for reply in self._calls.membership(opened):
                    yield call.seal(reply)
            except RefusalError as error:
                await self._refuse(error, call, context)

        return answer

    async def _refuse(self, error: RefusalError, call: Call, context: Any) -> None:
        self._service.refused(str(error))
        await refuse(error, call, context)
