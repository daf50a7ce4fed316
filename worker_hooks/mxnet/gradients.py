"""Buckets of MXNet gradients: backward itself writes into them, and MXNet's own queue sends what is done.

The factor b_i comes in at the head of the backward pass, so nothing is scaled or copied.
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
from worker_hooks import trailer as tail
from worker_hooks.exchange import Bucket, GradientExchange, group_parameters


class MXNetBucket(Bucket):
    """Gradients of `parameters`, of one type and device; `tail_values` further values behind them.

    From now on the parameters' gradients live here.
    """

    def __init__(self, name: str, parameters: Sequence[Parameter], tail_values: int) -> None:
        self.name = name
        first = parameters[0]
        values = sum(p.data().size for p in parameters)
        self.buffer = mx.nd.zeros(values + tail_values, ctx=first.list_ctx()[0], dtype=first.dtype)
        self.size_bytes = self.buffer.size * np.dtype(first.dtype).itemsize
        self._gradients = self.buffer[:values]
        self._tail: Any = self.buffer[values:] if tail_values else None
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
                weights._fresh_grad = True  # or Trainer takes it for a mistake

    def squared(self) -> float:
        return float(mx.nd.dot(self._gradients, self._gradients).asscalar())

    def write_tail(self, values: NDArray[np.float64]) -> None:
        self._tail[:] = values

    def read_tail(self) -> NDArray[np.floating[Any]]:
        values: NDArray[np.floating[Any]] = self._tail.asnumpy()
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
        tail_values = tail.length(comm.size)
        super().__init__(
            comm,
            [
                MXNetBucket(f"{prefix}.gradients.{i}", [trained[n] for n in group], (group is groups[-1]) * tail_values)
                for i, group in enumerate(groups)
            ],
        )

    def backward(self, loss: Any) -> None:
        """Backward of the mean loss; returns when its last gradient is computed. Full buckets leave meanwhile."""
        loss.backward(mx.nd.full(loss.shape, self._samples, ctx=loss.context, dtype=loss.dtype))
        self.send_full()
        self.buckets[-1].buffer.wait_to_read()  # of the first layers, the last to be computed


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
