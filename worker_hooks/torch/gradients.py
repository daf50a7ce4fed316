"""Buckets of torch gradients, filled by the parameters' own hooks while backward runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dynamix_ps.comm import Comm
from dynamix_ps.errors import TrainingError
from worker_hooks import trailer
from worker_hooks.exchange import Bucket, GradientExchange, group_parameters


class TorchBucket(Bucket):
    """Gradients of `parameters`, of one type and device; `trailer_values` more values after them."""

    def __init__(self, name: str, parameters: Sequence[torch.nn.Parameter], trailer_values: int) -> None:
        self.name = name
        values = sum(p.numel() for p in parameters)
        buffer = torch.zeros(values + trailer_values, dtype=parameters[0].dtype, device=parameters[0].device)
        self.buffer = buffer
        self.size_bytes = buffer.numel() * buffer.element_size()
        self.views: dict[torch.nn.Parameter, torch.Tensor] = {}
        start = 0
        for parameter in parameters:
            self.views[parameter] = buffer[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        self._gradients, self._trailer = buffer[:values], buffer[values:]
        self._missing: set[torch.nn.Parameter] = set()
        self._weight = 0.0

    def open(self, samples: int) -> None:
        self._weight = float(samples)
        self._missing = set(self.views)

    def take(self, parameter: torch.nn.Parameter) -> None:
        """Copy a new gradient into its place, times b_i. Raises TrainingError when it comes twice."""
        if parameter.grad is None or parameter not in self._missing:
            raise TrainingError("a gradient arrived twice in one run.backward(); call it once per optimizer.step()")
        torch.mul(parameter.grad, self._weight, out=self.views[parameter])
        self._missing.discard(parameter)

    def is_full(self) -> bool:
        return not self._missing

    def fill_gaps(self) -> None:
        for parameter in self._missing:
            if parameter.grad is None or not self._weight:
                self.views[parameter].zero_()
            else:  # an earlier backward outside run.backward() has accumulated it
                torch.mul(parameter.grad, self._weight, out=self.views[parameter])
        self._missing.clear()

    def squared(self) -> float:
        return float(torch.dot(self._gradients, self._gradients))

    def write_trailer(self, values: NDArray[np.float64]) -> None:
        self._trailer.copy_(torch.from_numpy(values))

    def read_trailer(self) -> NDArray[np.floating[Any]]:
        values: NDArray[np.floating[Any]] = self._trailer.cpu().numpy()
        return values

    def deliver(self, factor: float) -> None:
        self._gradients.mul_(factor)
        for parameter, place in self.views.items():
            parameter.grad = place


class TorchExchange(GradientExchange):
    """The exchange of one torch model."""

    def __init__(self, model: torch.nn.Module, comm: Comm, bucket_bytes: int, prefix: str) -> None:
        buckets = layout_buckets(model.parameters(), bucket_bytes, trailer.length(comm.size), prefix)
        super().__init__(comm, buckets)
        self._bucket_of = {parameter: bucket for bucket in buckets for parameter in bucket.views}
        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]

    def _on_gradient(self, parameter: torch.nn.Parameter) -> None:
        if not self._open:
            return  # a backward outside run.backward() accumulates locally; the next run.backward() sends it
        bucket = self._bucket_of[parameter]
        bucket.take(parameter)
        if bucket.is_full():
            self.send_full()


def layout_buckets(
    parameters: Iterable[torch.nn.Parameter], bucket_bytes: int, trailer_values: int, prefix: str
) -> list[TorchBucket]:
    """Buckets of about `bucket_bytes`; the last one has `trailer_values` more values at its end.

    Raises TrainingError for parameter types that cannot be summed.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trained:
        if parameter.dtype not in (torch.float32, torch.float64):
            raise TrainingError(
                f"a parameter has type {parameter.dtype}; weighted gradients are summed as float32 or float64: "
                f"keep the parameters in float32 (autocast may still compute in {parameter.dtype})"
            )
    groups = group_parameters(
        [p.numel() * p.element_size() for p in trained], [(p.dtype, p.device) for p in trained], bucket_bytes
    )
    buckets = []
    for index, group in enumerate(groups):
        extra = trailer_values if group is groups[-1] else 0
        buckets.append(TorchBucket(f"{prefix}.gradients.{index}", [trained[n] for n in group], extra))
    return buckets
