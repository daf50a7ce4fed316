"""Authentication: every call proves that its caller knows the token of the run (session.py), and names its run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import grpc
import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckResponse

from dynamix_ps.rpc.refusals import OtherRunError, RefusalError, UnknownSessionError, UnprovenCallError
from dynamix_ps.rpc.session import Call, Sessions

PROTOCOL = (3, 1)  # (major, minor); arbitrator.proto says what they promise
GREET = "/dynamix.arbitrator.Arbitrator/Greet"

_PROTOCOL_KEY = "dynamix-protocol"
_RUN_KEY = "dynamix-run"
_GREETING_KEY = "dynamix-greeting-bin"
_CALL_KEY = "dynamix-call-bin"
_REFUSAL_KEY = "dynamix-refusal-bin"
_HEALTH_CHECK = "/grpc.health.v1.Health/Check"

Metadata = tuple[tuple[str, "str | bytes"], ...]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


def greeting_metadata(own: bytes) -> Metadata:
    """What a client sends with its greeting: random bytes."""
    return ((_GREETING_KEY, own),)


def call_metadata(run_id: str, proven: bytes) -> Metadata:
    """What a client sends with every later call."""
    return (
        (_PROTOCOL_KEY, f"{PROTOCOL[0]}.{PROTOCOL[1]}"),
        (_RUN_KEY, run_id),
        (_CALL_KEY, proven),
    )


def refusal_metadata(call: Call, code: str) -> Metadata:
    """What goes with a refusal of a proven call."""
    return ((_REFUSAL_KEY, call.proof_of_refusal(code)),)


def refusal_is_proven(metadata: Any, call: Call, code: str) -> bool:
    """Whether a refusal with these trailing metadata is that of the arbitrator."""
    return (_REFUSAL_KEY, call.proof_of_refusal(code)) in [(key, value) for key, value in metadata or ()]


def check_run(metadata: Mapping[str, str | bytes], run_id: str) -> None:
    """Raises OtherRunError if the caller is of another run or speaks another version of the protocol."""
    if _major(metadata) != str(PROTOCOL[0]):
        raise OtherRunError(_other_version(metadata))
    run = metadata.get(_RUN_KEY, "")
    if run != run_id:
        raise OtherRunError(f"run id: found {run!r}, expected {run_id!r}; this arbitrator serves another run")


def admitted(sessions: Sessions, method: str, metadata: Mapping[str, str | bytes]) -> Call:
    """The call with these metadata. Raises RefusalError if its caller does not prove that it knows the token."""
    told = metadata.get(_CALL_KEY)
    if not isinstance(told, bytes):
        raise UnprovenCallError(f"the call has no proof of the token of the run; {_other_version(metadata)}")
    return sessions.admit(method, told)


def greeted(sessions: Sessions, metadata: Mapping[str, str | bytes]) -> bytes:
    """The answer to a greeting with these metadata. Raises UnprovenCallError if it is none."""
    own = metadata.get(_GREETING_KEY, b"")
    return sessions.greeting(own if isinstance(own, bytes) else b"")


def _major(metadata: Mapping[str, str | bytes]) -> str:
    return str(metadata.get(_PROTOCOL_KEY, "")).partition(".")[0]


def _other_version(metadata: Mapping[str, str | bytes]) -> str:
    found = metadata.get(_PROTOCOL_KEY, "none")
    return f"protocol version: found {found!s}, expected {PROTOCOL[0]}.x; install the same dynamix_ps on all machines"


class Authentication(grpc.aio.ServerInterceptor):
    """Refuses calls without a valid proof before a message is read, and gives `on_refused` the reason.

    A refused call ends at once: it reads no message and waits for nothing, so that it takes up no place that a worker
    needs. Two calls need no proof, the greeting and the health check of gRPC; both are answered in the same way. The
    other call of the health service, Watch, stays open as long as the caller likes, so it is not served.

    Args:
        serve: the handler for a method and its proven call; none: there is no such method.
    """

    def __init__(
        self,
        run_id: str,
        sessions: Sessions,
        serve: Callable[[str, Call], Handler | None],
        on_refused: Callable[[str], None],
    ) -> None:
        self._run_id, self._sessions, self._serve, self._on_refused = run_id, sessions, serve, on_refused

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        method = handler_call_details.method
        if method == _HEALTH_CHECK:
            return _answering(HealthCheckResponse(status=HealthCheckResponse.SERVING).SerializeToString())
        metadata = dict(handler_call_details.invocation_metadata)
        call = None
        try:
            if method == GREET:
                return _answering(greeted(self._sessions, metadata))
            call = admitted(self._sessions, method, metadata)
            check_run(metadata, self._run_id)
        except RefusalError as error:
            if not isinstance(error, UnknownSessionError):
                self._on_refused(str(error))
            return _refusing(error, call)
        return self._serve(method, call)


async def refuse(error: RefusalError, call: Call | None, context: Any) -> None:
    """End a call with the reason, and with a proof of the refusal if the call was proven."""
    metadata = () if call is None else refusal_metadata(call, error.code)
    await context.abort(grpc.StatusCode[error.code], str(error), metadata)


def _answering(reply: bytes) -> Handler:
    """A handler that answers without reading the caller's message: it may never come."""

    async def answer(_messages: object, _context: object) -> bytes:
        return reply

    return grpc.stream_unary_rpc_method_handler(answer)


def _refusing(error: RefusalError, call: Call | None) -> Handler:
    """A handler that refuses without reading the caller's message."""

    async def answer(_messages: object, context: Any) -> None:
        await refuse(error, call, context)

    return grpc.stream_unary_rpc_method_handler(answer)
