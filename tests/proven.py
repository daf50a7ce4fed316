"""Both ends of proven calls, for tests that stand for a caller or for an arbitrator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from dynamix_ps.rpc import arbitrator_pb2 as pb
from dynamix_ps.rpc import arbitrator_pb2_grpc as pb_grpc
from dynamix_ps.rpc.auth import GREET, admitted, greeted, refusal_metadata
from dynamix_ps.rpc.proven_channel import FINAL, ProvenChannel
from dynamix_ps.rpc.refusals import RefusalError
from dynamix_ps.rpc.session import Call, Sessions

_METHODS = pb.DESCRIPTOR.services_by_name["Arbitrator"].methods_by_name


def stub_of(channel: grpc.Channel, run_id: str, token: str) -> Any:
    """The calls of arbitrator.proto, by one who has the token."""
    return pb_grpc.ArbitratorStub(ProvenChannel(channel, run_id, token))  # type: ignore[no-untyped-call]


def add_servicer(servicer: pb_grpc.ArbitratorServicer, server: grpc.Server, token: str) -> None:
    """Let a server answer with what a servicer says, and with the proofs that the arbitrator of a run gives."""
    server.add_generic_rpc_handlers((_Proving(servicer, token),))


def _refusing(error: RefusalError) -> Any:
    def refuse(messages: object, context: Any) -> None:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))

    return refuse


class _Proving(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, servicer: pb_grpc.ArbitratorServicer, token: str) -> None:
        self._servicer, self._sessions = servicer, Sessions(token, 100)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method, metadata = handler_call_details.method, dict(handler_call_details.invocation_metadata)
        if method == GREET:
            return grpc.stream_unary_rpc_method_handler(lambda messages, context: greeted(self._sessions, metadata))
        name = method.rpartition("/")[2]
        try:
            call = admitted(self._sessions, method, metadata)
        except RefusalError as error:
            return grpc.stream_unary_rpc_method_handler(_refusing(error))
        one, many = self._behaviours(name, call)
        if _METHODS[name].server_streaming:
            return grpc.unary_stream_rpc_method_handler(many)
        return grpc.unary_unary_rpc_method_handler(one)

    def _behaviours(self, name: str, call: Call) -> Any:
        kind, behaviour = GetMessageClass(_METHODS[name].input_type), getattr(self._servicer, name)

        def begin(message: bytes, context: Any) -> Any:
            context.set_trailing_metadata([proof for code in FINAL for proof in refusal_metadata(call, code.name)])
            return behaviour(kind.FromString(call.open(message)), context)

        def one(message: bytes, context: Any) -> bytes:
            return call.seal(begin(message, context).SerializeToString())

        def many(message: bytes, context: Any) -> Iterator[bytes]:
            for reply in begin(message, context):
                yield call.seal(reply.SerializeToString())

        return one, many
