"""Authentication: every call carries the protocol version, the run's id and the run's secret token."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckResponse

PROTOCOL = (2, 2)  # (major, minor); arbitrator.proto says what they promise

_PROTOCOL_KEY = "dynamix-protocol"
_RUN_KEY = "dynamix-run"
_TOKEN_KEY = "dynamix-token"
_HEALTH_CHECK = "/grpc.health.v1.Health/Check"

Metadata = tuple[tuple[str, str], ...]
Refusal = tuple[grpc.StatusCode, str]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def credentials(run_id: str, token: str) -> Metadata:
    """The metadata that a worker sends with every call."""
    return (
        (_PROTOCOL_KEY, f"{PROTOCOL[0]}.{PROTOCOL[1]}"),
        (_RUN_KEY, run_id),
        (_TOKEN_KEY, token),
    )


def refusal(metadata: dict[str, str], run_id: str, token: str) -> Refusal | None:
    """Why a call with this metadata is refused, or None.

    The token is checked first, so that a caller without it learns nothing else.
    """
    if not hmac.compare_digest(metadata.get(_TOKEN_KEY, "").encode(), token.encode()):
        return (
            grpc.StatusCode.PERMISSION_DENIED,
            "the token is missing or not that of this run; workers get it from their launcher as DYNAMIX_TOKEN",
        )
    found = metadata.get(_PROTOCOL_KEY, "none")
    if found.partition(".")[0] != str(PROTOCOL[0]):
        return (
            grpc.StatusCode.FAILED_PRECONDITION,
            f"protocol version: found {found}, expected {PROTOCOL[0]}.x; install the same dynamix_ps on all machines",
        )
    run = metadata.get(_RUN_KEY, "")
    if run != run_id:
        return (
            grpc.StatusCode.FAILED_PRECONDITION,
            f"run id: found {run!r}, expected {run_id!r}; this arbitrator serves another run",
        )
    return None


class Authentication(grpc.aio.ServerInterceptor):
    """Refuses calls without valid credentials before the service sees them, and gives `on_refused` the reason.

    A refused call ends at once: it reads no message and waits for nothing, so that it takes up no place that a worker
    needs. The one call that needs no token is the health check of gRPC, which is answered in the same way. Its other
    call, Watch, stays open as long as the caller likes, so it is not served.
    """

    def __init__(self, run_id: str, token: str, on_refused: Callable[[str], None]) -> None:
        self._run_id = run_id
        self._token = token
        self._on_refused = on_refused

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        if handler_call_details.method == _HEALTH_CHECK:
            return grpc.stream_unary_rpc_method_handler(_healthy)
        metadata = {key: value for key, value in handler_call_details.invocation_metadata if isinstance(value, str)}
        refused = refusal(metadata, self._run_id, self._token)
        if refused is None:
            return await continuation(handler_call_details)
        self._on_refused(refused[1])
        return _refusing(*refused)


async def _healthy(_messages: object, _context: object) -> bytes:
    return HealthCheckResponse(status=HealthCheckResponse.SERVING).SerializeToString()


def _refusing(code: grpc.StatusCode, text: str) -> _Handler:
    """A handler that refuses without reading the caller's message: it may never come."""

    async def refuse(_messages: object, context: Any) -> None:
        await context.abort(code, text)

    return grpc.stream_unary_rpc_method_handler(refuse)
