"""Buckets of MXNet gradients: backward writes into them, and MXNet's own queue sends each one when it is complete.

The backward pass starts with this worker's share of the batch as a factor, so that no gradient is scaled or copied
afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import Parameter
from numpy.typing import NDArray

from dynamix_ps.comm import Comm
from dynamix_ps.errors import TrainingError
from worker_hooks.exchange.gradient_exchange import Bucket, GradientExchange, bucket_layout
from worker_hooks.exchange.trailer import Contribution, trailer_length
from worker_hooks.workers import Workers


class MXNetBucket(Bucket):
    """Gradients of `parameters`, of the type and device of `like`; then the values of `statistics`, then a trailer.

    The gradients of the parameters are views of its buffer from now on.

    Args:
        statistics: running statistics of batch norm: their weighted mean goes back into them.
        trailer_values: number of values of the trailer; 0: another bucket has it.
    """

    def __init__(
        self,
        name: str,
        comm: Comm,
        like: Parameter,
        parameters: Sequence[Parameter],
        statistics: Sequence[Parameter] = (),
        trailer_values: int = 0,
    ) -> None:
        self.name = name
        self.parameters = parameters
        gradients = sum(p.data().size for p in parameters)
        values = gradients + sum(s.data().size for s in statistics)
        context = like.list_ctx()[0]
        if context.device_type == "cpu":
            self.memory = comm.allocate(values + trailer_values, np.dtype(like.dtype).name)
            self.buffer = mx.nd.from_numpy(self.memory, zero_copy=True)
        else:
            self.buffer = mx.nd.zeros(values + trailer_values, ctx=context, dtype=like.dtype)
        self.own = self.buffer  # backward writes into it
        self.size_bytes = self.buffer.size * np.dtype(like.dtype).itemsize
        self._gradients: Any = self.buffer[:gradients] if gradients else None
        self.trailer_begin, self.rounded = values, gradients
        self._places: list[tuple[Any, Any]] = []  # a parameter's weights, and its gradient in the buffer
        self._statistics: list[tuple[Any, Any]] = []
        self._sums: dict[int, Any] = {}  # of micro-batches, by the number of the parameter
        start = 0
        for parameter in (*parameters, *statistics):
            weights = parameter.data()
            place = self.buffer[start : start + weights.size].reshape(weights.shape)
            start += weights.size
            if start > gradients:
                self._statistics.append((weights, place))
                continue
            parameter._grad = [place]
            autograd.mark_variables([weights], [place], parameter.grad_req)
            self._places.append((weights, place))

    def open(self, weight: float, has_samples: bool) -> None:
        self.lacking = ()
        for weights, _ in self._places:
            weights._fresh_grad = False

    def is_full(self) -> bool:
        return all(weights._fresh_grad for weights, _ in self._places)

    def fill_gaps(self) -> None:
        lacking = [number for number, (weights, _) in enumerate(self._places) if not weights._fresh_grad]
        for number in lacking:
            self._places[number][1][:] = 0
        self.lacking = lacking

    def squared(self, own: bool = False) -> float:
        return float(mx.nd.dot(self._gradients, self._gradients).asscalar())

    def is_finite(self) -> bool:
        return float((0 * self._gradients).sum().asscalar()) == 0  # 0 times anything else is NaN

    def clear(self) -> None:
        self._gradients[:] = 0

    def scale(self, factor: float) -> None:
        self._gradients *= factor

    def scale_statistics(self, factor: float) -> None:
        for statistic, place in self._statistics:
            place[:] = place * factor if factor else statistic

    def write_statistics(self, share: float) -> None:
        """Put `share` times the running statistics into their places."""
        for statistic, place in self._statistics:
            place[:] = statistic * share if share else 0

    def write_trailer(self, values: NDArray[np.float64]) -> None:
        self.buffer[self.trailer_begin :] = values

    def read_trailer(self) -> NDArray[np.floating[Any]]:
        values: NDArray[np.floating[Any]] = self.buffer[self.trailer_begin :].asnumpy()
        return values

    def add_up(self) -> None:
        """Add what backward has written since the last time to the sums of this batch."""
        for number, (weights, place) in enumerate(self._places):
            if not weights._fresh_grad:
                continue
            weights._fresh_grad = False
            if number in self._sums:
                self._sums[number] += place
            else:
                self._sums[number] = place.copy()

    def put_sums(self) -> None:
        """These sums are the gradients of the batch."""
        for number, total in self._sums.items():
            weights, place = self._places[number]
            place[:] = total
            weights._fresh_grad = True
        self._sums.clear()

    def deliver(self, present: NDArray[np.bool_]) -> None:
        """The gradients are in their places already. Those that nobody has are stale, as Trainer calls it."""
        for (weights, _), has_gradient in zip(self._places, present.tolist(), strict=True):
            weights._fresh_grad = has_gradient
        for statistic, place in self._statistics:
            statistic[:] = place


class MXNetExchange(GradientExchange):
    """The exchange of one Gluon model."""

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        statistics: Sequence[Parameter],
        comm: Comm,
        bucket_bytes: int,
        prefix: str,
        workers: Workers,
    ) -> None:
        """Raises TrainingError for parameters whose gradients cannot be summed."""
        for name, parameter in parameters.items():
            _check(name, parameter)
        trained = list(parameters.values())
        groups = bucket_layout(
            [p.data().size * np.dtype(p.dtype).itemsize for p in trained],
            [(np.dtype(p.dtype), p.list_ctx()[0]) for p in trained],
            bucket_bytes,
            comm.least_bucket_bytes,
        )
        self._buckets = [
            MXNetBucket(
                f"{prefix}.gradients.{index}",
                comm,
                trained[(group or groups[-2])[0]],
                [trained[number] for number in group],
                statistics if group is groups[-1] else (),
                trailer_length(workers, len(trained)) if group is groups[-1] else 0,
            )
            for index, group in enumerate(groups)
        ]
        super().__init__(comm, self._buckets, workers)

    def backward(self, loss: Any, repetitions: Iterator[None] | None = None) -> None:
        """Run backward of the mean loss, and send full buckets meanwhile. Returns when the last gradient is there.

        `repetitions`: further backward passes, whose gradients are added; each step runs one of them.
        """
        loss.backward(mx.nd.full(loss.shape, self.weight, ctx=loss.context, dtype=loss.dtype))
        if repetitions is not None:
            self._add_up()
            for _ in repetitions:
                self._add_up()
            for bucket in self._buckets:
                bucket.put_sums()
        self.send_full()
        with_gradients = [bucket for bucket in self._buckets if bucket.parameters]
        with_gradients[-1].buffer.wait_to_read()  # it holds the first layers, whose gradients come last

    def _add_up(self) -> None:
        for bucket in self._buckets:
            bucket.add_up()

    def send_rest(self, contribute: Callable[[float], Sequence[Contribution]]) -> None:
        self._buckets[-1].write_statistics(self._share)
        super().send_rest(contribute)


def _check(name: str, parameter: Parameter) -> None:
    if np.dtype(parameter.dtype) not in (np.float32, np.float64):
        raise TrainingError(
            f"parameter {name} has type {np.dtype(parameter.dtype).name}; weighted gradients are summed as "
            "float32 or float64: keep the parameters in float32"
        )
    if parameter.grad_req != "write" or parameter._grad_stype != "default":
        raise TrainingError(
            f"parameter {name} has grad_req {parameter.grad_req!r} and {parameter._grad_stype} gradients; "
            "expected 'write' and default (dense) ones"
        )
    if len(parameter.list_ctx()) > 1:
        raise TrainingError(f"parameter {name} is on {len(parameter.list_ctx())} devices; start one worker per device")
