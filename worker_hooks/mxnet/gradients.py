"""Buckets of MXNet gradients: backward writes into them, and MXNet's own queue sends each one when it is complete.

The backward pass starts with the factor b_i, so that no gradient is scaled or copied afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import Parameter
from numpy.typing import NDArray

from dynamix_ps.comm import Comm
from dynamix_ps.errors import TrainingError
from worker_hooks import trailer
from worker_hooks.exchange import Bucket, GradientExchange, group_parameters


class MXNetBucket(Bucket):
    """Gradients of `parameters`, of one type and device; `trailer_values` more values after them.

    The gradients of the parameters are views of its buffer from now on.
    """

    def __init__(self, name: str, parameters: Sequence[Parameter], trailer_values: int) -> None:
        self.name = name
        first = parameters[0]
        values = sum(p.data().size for p in parameters)
        self.buffer = mx.nd.zeros(values + trailer_values, ctx=first.list_ctx()[0], dtype=first.dtype)
        self.size_bytes = self.buffer.size * np.dtype(first.dtype).itemsize
        self._gradients = self.buffer[:values]
        self._trailer: Any = self.buffer[values:] if trailer_values else None
        self._places: list[tuple[Any, Any]] = []  # a parameter's weights, and its gradient in the buffer
        start = 0
        for parameter in parameters:
            weights = parameter.data()
            place = self.buffer[start : start + weights.size].reshape(weights.shape)
            start += weights.size
            parameter._grad = [place]
            autograd.mark_variables([weights], [place], parameter.grad_req)
            self._places.append((weights, place))

    def open(self, samples: int) -> None:
        for weights, _ in self._places:
            weights._fresh_grad = False

    def is_full(self) -> bool:
        return all(weights._fresh_grad for weights, _ in self._places)

    def fill_gaps(self) -> None:
        for weights, place in self._places:
            if not weights._fresh_grad:
                place[:] = 0
                weights._fresh_grad = True  # or Trainer reports a stale gradient

    def squared(self) -> float:
        return float(mx.nd.dot(self._gradients, self._gradients).asscalar())

    def write_trailer(self, values: NDArray[np.float64]) -> None:
        self._trailer[:] = values

    def read_trailer(self) -> NDArray[np.floating[Any]]:
        values: NDArray[np.floating[Any]] = self._trailer.asnumpy()
        return values

    def deliver(self, factor: float) -> None:
        self._gradients *= factor


class MXNetExchange(GradientExchange):
    """The exchange of one Gluon model."""

    def __init__(self, parameters: Sequence[Parameter], comm: Comm, bucket_bytes: int, prefix: str) -> None:
        """Raises TrainingError for parameters whose gradients cannot be summed."""
        trained = [parameter for parameter in parameters if parameter.grad_req != "null"]
        for parameter in trained:
            _check(parameter)
        groups = group_parameters(
            [p.data().size * np.dtype(p.dtype).itemsize for p in trained],
            [(np.dtype(p.dtype), p.list_ctx()[0]) for p in trained],
            bucket_bytes,
        )
        trailer_values = trailer.length(comm.size)
        buckets = []
        for index, group in enumerate(groups):
            extra = trailer_values if group is groups[-1] else 0
            buckets.append(MXNetBucket(f"{prefix}.gradients.{index}", [trained[n] for n in group], extra))
        super().__init__(comm, buckets)

    def backward(self, loss: Any) -> None:
        """Run backward of the mean loss, and send full buckets meanwhile. Returns when the last gradient is there."""
        loss.backward(mx.nd.full(loss.shape, self._samples, ctx=loss.context, dtype=loss.dtype))
        self.send_full()
        self.buckets[-1].buffer.wait_to_read()  # it holds the first layers, whose gradients come last


def _check(parameter: Parameter) -> None:
    if np.dtype(parameter.dtype) not in (np.float32, np.float64):
        raise TrainingError(
            f"parameter {parameter.name} has type {np.dtype(parameter.dtype).name}; weighted gradients are summed as "
            "float32 or float64: keep the parameters in float32"
        )
    if parameter.grad_req != "write" or parameter._grad_stype != "default":
        raise TrainingError(
            f"parameter {parameter.name} has grad_req {parameter.grad_req!r} and {parameter._grad_stype} gradients; "
            "expected 'write' and default (dense) ones"
        )
    if len(parameter.list_ctx()) > 1:
        raise TrainingError(
            f"parameter {parameter.name} is on {len(parameter.list_ctx())} devices; start one worker per device"
        )
