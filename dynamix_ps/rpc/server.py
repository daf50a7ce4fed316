"""The arbitrator's gRPC server: who may call (auth.py), how much anybody can take up (channel.py), what is said to a
refused caller. The calls themselves are in calls.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from dynamix_ps.certificates import Certificates
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.rpc.auth import Authentication
from dynamix_ps.rpc.calls import Calls, Membership, Service
from dynamix_ps.rpc.channel import server_options
from dynamix_ps.rpc.encryption import add_port
from dynamix_ps.rpc.refusals import RefusalError

_SERVICE = "dynamix.arbitrator.Arbitrator"  # as in arbitrator.proto


class Server:
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
        self._server = grpc.aio.server(
            interceptors=[Authentication(run_id, token, service.refused)], options=server_options(n_workers)
        )
        calls = Calls(service, coordinator)
        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(self._one(call)) for name, call in calls.unary.items()
        }
        handlers["Plans"] = grpc.unary_stream_rpc_method_handler(self._stream(calls.plans))
        handlers["Membership"] = grpc.stream_stream_rpc_method_handler(self._stream(calls.membership))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))

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

    def _one(self, call: Callable[[bytes], bytes]) -> Any:
        async def answer(message: bytes, context: Any) -> bytes:
            try:
                return call(message)
            except RefusalError as error:
                await self._refuse(error, context)
                raise  # not reached: abort raises

        return answer

    def _stream(self, call: Callable[[Any], AsyncIterator[bytes]]) -> Any:
        """A handler for a call that gets the bytes of one message, or of several as they come."""

        async def answer(request: Any, context: Any) -> AsyncIterator[bytes]:
            try:
                async for reply in call(request):
                    yield reply
            except RefusalError as error:
                await self._refuse(error, context)

        return answer

    async def _refuse(self, error: RefusalError, context: Any) -> None:
        self._service.refused(str(error))
        await context.abort(grpc.StatusCode[error.code], str(error))
