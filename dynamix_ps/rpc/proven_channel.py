"""The client's end of calls whose both sides prove that they know the run's token (session.py), over a gRPC channel.

It greets before the first call, and again when the arbitrator does not know the session: after its restart. What does
not prove itself is never believed. Its answers and its refusals raise UnprovenError, after which a later call may find
the arbitrator again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from dynamix_ps.rpc.auth import GREET, call_metadata, greeting_metadata, refusal_is_proven
from dynamix_ps.rpc.refusals import UnprovenCallError
from dynamix_ps.rpc.session import Call, ClientSession
from dynamix_ps.token_proof import random_number

FINAL = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
)


class UnprovenError(grpc.RpcError):
    """What answers has not proven that it knows the token of the run."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"{why}; another program or another user has its port, or this role has another DYNAMIX_TOKEN or another "
            "version of dynamix_ps"
        )

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAUTHENTICATED

    def details(self) -> str:
        return str(self)


class ProvenChannel:
    """What a generated stub needs of a channel. Calls take a request and a deadline, and raise grpc.RpcError.

    As with the channel itself, a call after `close` of that raises ValueError.
    """

    def __init__(self, channel: grpc.Channel, run_id: str, token: str) -> None:
        self._channel: Any = channel  # of bytes
        self._run_id, self._token = run_id, token
        self._lock = threading.Lock()
        self._session: ClientSession | None = None

    def unary_unary(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        **_: Any,
    ) -> Callable[..., Any]:
        send = self._channel.unary_unary(method)

        def answer(request: Any, timeout: float) -> Any:
            with self._call(method, timeout) as (call, metadata):
                sealed = call.seal(request_serializer(request))
                return response_deserializer(call.open(send(sealed, timeout=timeout, metadata=metadata)))

        return answer

    def unary_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        **_: Any,
    ) -> Callable[..., Iterator[Any]]:
        send = self._channel.unary_stream(method)

        def answers(request: Any, timeout: float) -> Iterator[Any]:
            with self._call(method, timeout) as (call, metadata):
                for sealed in send(call.seal(request_serializer(request)), timeout=timeout, metadata=metadata):
                    yield response_deserializer(call.open(sealed))

        return answers

    def stream_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        **_: Any,
    ) -> Callable[..., Iterator[Any]]:
        send = self._channel.stream_stream(method)

        def answers(requests: Iterable[Any], timeout: float) -> Iterator[Any]:
            with self._call(method, timeout) as (call, metadata):
                sealed = (call.seal(request_serializer(request)) for request in requests)
                for reply in send(sealed, timeout=timeout, metadata=metadata):
                    yield response_deserializer(call.open(reply))

        return answers

    @contextmanager
    def _call(self, method: str, timeout: float) -> Iterator[tuple[Call, Any]]:
        """A call within the session, which begins here if there is none; it ends if what answers is not believed."""
        session = self._greeted(timeout)
        call, proven = session.call(method)
        try:
            yield call, call_metadata(self._run_id, proven)
        except UnprovenCallError as error:
            self._forget(session)
            raise UnprovenError(str(error)) from error
        except grpc.RpcError as error:
            if error.code() in FINAL and not refusal_is_proven(error.trailing_metadata(), call, error.code().name):
                self._forget(session)
                raise _unproven_refusal(error) from error
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                self._forget(session)
            raise

    def _greeted(self, timeout: float) -> ClientSession:
        with self._lock:
            if self._session is None:
                own = random_number()
                try:
                    reply = self._channel.unary_unary(GREET)(b"", timeout=timeout, metadata=greeting_metadata(own))
                    self._session = ClientSession(self._token, own, reply)
                except UnprovenCallError as error:
                    raise UnprovenError(str(error)) from error
                except grpc.RpcError as error:
                    if error.code() in FINAL:
                        raise _unproven_refusal(error) from error
                    raise
            return self._session

    def _forget(self, session: ClientSession) -> None:
        with self._lock:
            if self._session is session:
                self._session = None


def _unproven_refusal(error: Any) -> UnprovenError:
    said = " ".join((error.details() or "no details").split())[:100]
    return UnprovenError(
        f"what answers refuses ({error.code().name}: {said}) without a proof that it knows the token of this run"
    )
