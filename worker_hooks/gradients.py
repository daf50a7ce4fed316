"""The exact global gradient (invariant 1): few flat buckets, sent while backward still runs.

Every worker pushes b_i * g_i and the sum is divided by B, the number of samples really processed, which
comes out of the same sum. Whatever the sizes are, zero included, the result is the gradient of one process
on the concatenated batch.

A gradient is written once, scaled by b_i, into its place in a bucket; the data plane sends from there and
receives into it; the sum is scaled by 1/B in place and the parameter's `.grad` then *is* that place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from dynamix_ps.comm import Comm
from dynamix_ps.errors import TrainingError
from worker_hooks import tail as tail_layout

WAIT_SLICE_S = 1.0  # how long a wait sleeps before it looks at the stall clock


@dataclass(slots=True)
class Bucket:
    """A flat run of gradients that travels as one buffer."""

    name: str
    buffer: torch.Tensor
    views: dict[torch.nn.Parameter, torch.Tensor]
    values: int  # gradient values; a tail may follow them
    missing: set[torch.nn.Parameter] = field(default_factory=set)
    handle: int | None = None

    @property
    def gradients(self) -> torch.Tensor:
        return self.buffer[: self.values]


def layout_buckets(
    parameters: Iterable[torch.nn.Parameter], bucket_bytes: int, tail_values: int, prefix: str
) -> list[Bucket]:
    """Pack parameters into flat buckets of about `bucket_bytes`, last layers first (the order backward uses them).

    The last bucket carries `tail_values` further values at its end.
    Raises TrainingError for parameter types that cannot be summed.
    """
    groups: list[list[torch.nn.Parameter]] = []
    sizes: list[int] = []
    for parameter in reversed([p for p in parameters if p.requires_grad]):
        if parameter.dtype not in (torch.float32, torch.float64):
            raise TrainingError(
                f"a parameter has type {parameter.dtype}; weighted gradients are summed as float32 or float64: "
                f"keep the parameters in float32 (autocast may still compute in {parameter.dtype})"
            )
        size = parameter.numel() * parameter.element_size()
        fits = groups and sizes[-1] + size <= bucket_bytes
        if fits and groups[-1][0].dtype == parameter.dtype and groups[-1][0].device == parameter.device:
            groups[-1].append(parameter)
            sizes[-1] += size
        else:
            groups.append([parameter])
            sizes.append(size)
    if not groups:
        raise TrainingError("the model has no parameter that requires a gradient, so there is nothing to train")
    return [
        _make_bucket(f"{prefix}.gradients.{i}", group, tail_values if group is groups[-1] else 0)
        for i, group in enumerate(groups)
    ]


def _make_bucket(name: str, parameters: list[torch.nn.Parameter], extra_values: int) -> Bucket:
    values = sum(p.numel() for p in parameters)
    buffer = torch.zeros(values + extra_values, dtype=parameters[0].dtype, device=parameters[0].device)
    views, start = {}, 0
    for parameter in parameters:
        views[parameter] = buffer[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    return Bucket(name, buffer, views, values)


class GradientExchange:
    """Sums the weighted gradients of one model over all workers, once per iteration.

    begin -> (backward fires the hooks, full buckets leave) -> send_rest -> receive
    """

    def __init__(self, model: torch.nn.Module, comm: Comm, bucket_bytes: int, prefix: str) -> None:
        self._comm = comm
        self.buckets = layout_buckets(model.parameters(), bucket_bytes, tail_layout.length(comm.size), prefix)
        last = self.buckets[-1]
        self._tail = last.buffer[last.values :].cpu().numpy()  # on the CPU this is the buffer's own memory
        self._bucket_of = {p: bucket for bucket in self.buckets for p in bucket.views}
        self._weight = 0.0
        self._measure = False
        self._weighted_sq = 0.0
        self._open = False
        self._next = 0  # bucket to send; all workers send in the same order, as a ring knows no names
        for bucket in self.buckets:
            comm.declare(bucket.name)
        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]

    @property
    def bytes_per_iteration(self) -> int:
        """Bytes this worker pushes per iteration (it pulls as many)."""
        return sum(bucket.buffer.numel() * bucket.buffer.element_size() for bucket in self.buckets)

    def begin(self, samples: int, measure_norm: bool) -> None:
        """Open an iteration of `samples` samples; until `send_rest`, backward fills and sends the buckets."""
        self._weight, self._measure, self._weighted_sq = float(samples), measure_norm, 0.0
        for bucket in self.buckets:
            bucket.missing = set(bucket.views)
            bucket.handle = None
        self._open, self._next = True, 0

    def _on_gradient(self, parameter: torch.nn.Parameter) -> None:
        if not self._open:
            return  # a backward outside run.backward(): local accumulation, sent with the next run.backward()
        bucket = self._bucket_of[parameter]
        gradient = parameter.grad
        if gradient is None or parameter not in bucket.missing:
            raise TrainingError("a gradient arrived twice in one run.backward(); call it once per optimizer.step()")
        torch.mul(gradient, self._weight, out=bucket.views[parameter])
        bucket.missing.discard(parameter)
        if not bucket.missing:
            self._send_full()

    def _send_full(self) -> None:
        """Send what is full and not yet sent, up to the first bucket that is not, and never the last."""
        while self._next < len(self.buckets) - 1 and not self.buckets[self._next].missing:
            bucket = self.buckets[self._next]
            if self._measure:
                self._weighted_sq += float(torch.dot(bucket.gradients, bucket.gradients))
            bucket.handle = self._comm.push_pull(bucket.name, bucket.buffer)
            self._next += 1

    def send_rest(self, contribute: Callable[[float], tail_layout.Contribution]) -> None:
        """Send what backward did not fill, as zeros where there is no gradient, and the last bucket with the tail.

        `contribute` gets |g_i|^2, the squared norm of this worker's mean gradient (NaN if not measured or if it
        has no samples), and returns what goes into the tail.
        """
        self._open = False
        last = self.buckets[-1]
        for bucket in self.buckets:
            for parameter in bucket.missing:
                if parameter.grad is None or not self._weight:
                    bucket.views[parameter].zero_()
                else:  # accumulated by an earlier backward, which was not exchanged
                    torch.mul(parameter.grad, self._weight, out=bucket.views[parameter])
            bucket.missing.clear()
        self._send_full()
        if self._measure:
            self._weighted_sq += float(torch.dot(last.gradients, last.gradients))
        grad_sq = self._weighted_sq / self._weight**2 if self._measure and self._weight else float("nan")
        tail_layout.encode(contribute(grad_sq), self._comm.rank, self._comm.size, self._tail)
        if last.buffer.is_cuda:
            last.buffer[last.values :] = torch.from_numpy(self._tail)
        last.handle = self._comm.push_pull(last.name, last.buffer)

    def receive(self, on_slow: Callable[[float], None]) -> tail_layout.GlobalView:
        """Wait for all sums and make them the gradients of the model: sum(b_i g_i) / B.

        Calls `on_slow(waited_s)` about once a second while waiting; what it raises ends the wait. If a worker
        reports a broken loss, or nobody had a sample, the gradients are left as they are.
        """
        began_s = time.monotonic()
        for bucket in self.buckets:
            assert bucket.handle is not None
            while not self._comm.wait(bucket.handle, WAIT_SLICE_S):
                on_slow(time.monotonic() - began_s)
        last = self.buckets[-1]
        summed = last.buffer[last.values :].cpu().numpy() if last.buffer.is_cuda else self._tail
        view = tail_layout.decode(summed, self._comm.size)
        if view.samples and not view.broken_ranks:
            for bucket in self.buckets:
                bucket.gradients.mul_(1.0 / view.samples)
                for parameter, place in bucket.views.items():
                    parameter.grad = place
        return view

    def squared_norm(self) -> float:
        """|g|^2 of the global gradient, after `receive`."""
        return sum(float(torch.dot(b.gradients, b.gradients)) for b in self.buckets)
