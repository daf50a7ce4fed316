"""Authentication: every call carries the protocol version, the run's id and the run's secret token."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

PROTOCOL = (2, 0)  # (major, minor); arbitrator.proto says what they promise

_PROTOCOL_KEY = "dynamix-protocol"
_RUN_KEY = "dynamix-run"
_TOKEN_KEY = "dynamix-token"
_OPEN_SERVICE = "/grpc.health.v1.Health/"

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


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without valid credentials before the service sees them, and gives `on_refused` the reason."""

    def __init__(self, run_id: str, token: str, on_refused: Callable[[str], None]) -> None:
        self._run_id = run_id
        self._token = token
        self._on_refused = on_refused

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(_OPEN_SERVICE):
            return handler
        metadata = {key: value for key, value in handler_call_details.invocation_metadata if isinstance(value, str)}
        refused = refusal(metadata, self._run_id, self._token)
        if refused is None:
            return handler
        self._on_refused(refused[1])
        return _refusing(handler, *refused)


def _refusing(handler: _Handler, code: grpc.StatusCode, text: str) -> _Handler:
    """A handler of the same kind that refuses every call."""

    async def refuse(_request: Any, context: Any) -> None:
        await context.abort(code, text)

    async def refuse_stream(request: Any, context: Any) -> AsyncIterator[Any]:
        await refuse(request, context)
        yield

    make: Any = (
        grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
    )
    refusing: _Handler = make(
        refuse_stream if handler.response_streaming else refuse,
        handler.request_deserializer,
        handler.response_serializer,
    )
    return refusing
