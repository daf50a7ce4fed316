"""Buckets of torch gradients, filled by the parameters' own hooks while backward runs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dynamix_ps.comm import Comm
from dynamix_ps.errors import TrainingError
from worker_hooks.exchange import Bucket, GradientExchange, group_parameters, trailer_length
from worker_hooks.workers import Workers

_SUMMED_AS = {torch.float16: torch.float32, torch.bfloat16: torch.float32}  # halves would lose the small gradients


class TorchBucket(Bucket):
    """Gradients of `parameters`, of one type and device; then `statistics`, then a trailer.

    Args:
        statistics: running statistics of normalisation layers (running_statistics.py): their weighted mean goes
            back into them.
        trailer_values: number of values of the trailer; 0: another bucket has it.
    """

    def __init__(
        self,
        name: str,
        comm: Comm,
        parameters: Sequence[torch.nn.Parameter],
        statistics: Sequence[torch.Tensor] = (),
        trailer_values: int = 0,
    ) -> None:
        self.name = name
        self.parameters = parameters
        first = parameters[0]
        gradients = sum(p.numel() for p in parameters)
        values = gradients + sum(s.numel() for s in statistics)
        dtype = _SUMMED_AS.get(first.dtype, first.dtype)
        device, values_in_all = first.device, values + trailer_values
        if device.type == "cpu" or not comm.sums_on(device.type):
            self.memory = comm.allocate(values_in_all, str(dtype).removeprefix("torch."))
        if device.type == "cpu":
            buffer = torch.from_numpy(self.memory)
        else:
            buffer = torch.zeros(values_in_all, dtype=dtype, device=device)
            if self.memory is not None:
                comm.travels_through(name, self.memory)
        self.buffer = buffer
        self.own = torch.zeros_like(buffer) if comm.sends_again else buffer
        self.size_bytes = buffer.numel() * buffer.element_size()
        tensors = (*parameters, *statistics)
        places = _places(self.buffer, tensors)
        own_places = places if self.own is self.buffer else _places(self.own, tensors)
        self.views = dict(zip(parameters, places, strict=False))
        self.own_views = dict(zip(parameters, own_places, strict=False))
        self._statistics = list(zip(statistics, places[len(parameters) :], strict=True))
        self._own_statistics = list(zip(statistics, own_places[len(parameters) :], strict=True))
        self._gradients, self._own_gradients = self.buffer[:gradients], self.own[:gradients]
        self.trailer_begin, self.rounded = values, gradients
        self._missing: set[torch.nn.Parameter] = set()
        self._weight, self._has_samples = 0.0, False
        self.carried: dict[torch.nn.Parameter, torch.Tensor] = {}
        self.present = np.ones(len(parameters), dtype=np.bool_)
        self._has_halves = any(p.dtype != dtype for p in parameters)
        self._placed = False  # every gradient is in its place, where the sum arrives

    def open(self, weight: float, has_samples: bool) -> None:
        self._weight, self._has_samples = weight, has_samples
        self._missing = set(self.views)
        self._placed = not self._has_halves
        self.present[:] = True

    def take(self, parameter: torch.nn.Parameter) -> None:
        """Put a new gradient into its place, scaled. Raises TrainingError when it comes twice."""
        if parameter not in self._missing:
            raise TrainingError(
                "a gradient arrived twice in one run.backward(): use checkpoint(..., use_reentrant=False), "
                "and call run.backward() once for the sum of all losses"
            )
        self._put(parameter)
        self._missing.discard(parameter)

    def _put(self, parameter: torch.nn.Parameter) -> None:
        """The place of the sum becomes the gradient at once: the memory of backward is free for what comes next."""
        gradient, place = parameter.grad, self.own_views[parameter]
        assert gradient is not None
        gradient = gradient.detach()
        if gradient.is_sparse:
            warnings.warn("sparse gradients are summed as dense ones, which are as large as the weights", stacklevel=2)
            gradient = gradient.to_dense()
        if not self._weight:
            place.zero_()
        elif gradient.dtype == place.dtype:
            torch.mul(gradient, self._weight, out=place)
        else:
            place.copy_(gradient).mul_(self._weight)
        if self.carried and (more := self.carried.pop(parameter, None)) is not None:
            place.add_(more)
        if parameter.dtype == place.dtype:
            parameter.grad = self.views[parameter]

    def is_full(self) -> bool:
        return not self._missing

    def fill_gaps(self) -> None:
        if not self._missing:
            return
        self._placed = False
        for number, parameter in enumerate(self.parameters):
            if parameter not in self._missing:
                continue
            if self._has_samples and parameter.grad is not None:
                self._put(parameter)  # an earlier backward outside run.backward() has accumulated it
            elif (more := self.carried.pop(parameter, None)) is not None:
                self.own_views[parameter].copy_(more)
            else:
                self.own_views[parameter].zero_()
                self.present[number] = False
        self._missing.clear()

    def carry(self, before: float, weight: float) -> None:
        """The gradients so far are of batches with weight `before`; the next batch has another one.

        They stay where they are, scaled, so that the script can still drop them by zero_grad(). Where this worker has
        no samples they are set aside, because the gradients of the next batch count for nothing.
        """
        for parameter, place in self.views.items():
            if parameter.grad is None:
                continue
            if before and weight:
                parameter.grad.mul_(before / weight)
                continue
            if before:
                earlier = self.carried.get(parameter)
                scaled = parameter.grad.detach().to_dense().to(place.dtype) * before
                self.carried[parameter] = scaled if earlier is None else earlier.add_(scaled)
            parameter.grad = None

    def squared(self, own: bool = False) -> float:
        gradients = self._own_gradients if own else self._gradients
        return float(torch.dot(gradients, gradients))

    def is_finite(self) -> bool:
        return all(math.isfinite(float(end)) for end in torch.aminmax(self._gradients))

    def clear(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()

    def scale(self, factor: float) -> None:
        self._gradients.mul_(factor)

    def scale_statistics(self, factor: float) -> None:
        for statistic, place in self._statistics:
            torch.mul(place if factor else statistic, factor or 1.0, out=place)

    def write_statistics(self, active: Sequence[bool], share: float) -> None:
        """Put `share` times the running statistics into their places; zeros where they are not `active`."""
        for (statistic, place), counts in zip(self._own_statistics, active, strict=True):
            if counts and share:
                torch.mul(statistic, share, out=place)
            else:
                place.zero_()

    def deliver_statistics(self, active: Sequence[bool]) -> None:
        """Make the summed statistics those of the model."""
        for (statistic, place), counts in zip(self._statistics, active, strict=True):
            if counts:
                statistic.copy_(place)

    def write_trailer(self, values: NDArray[np.float64]) -> None:
        self.own[self.trailer_begin :].copy_(torch.from_numpy(values))

    def read_trailer(self) -> NDArray[np.floating[Any]]:
        values: NDArray[np.floating[Any]] = self.buffer[self.trailer_begin :].clone().cpu().numpy()
        return values

    def deliver(self, present: NDArray[np.bool_]) -> None:
        if self._placed:
            return
        for (parameter, place), has_gradient in zip(self.views.items(), present.tolist(), strict=True):
            if has_gradient:
                parameter.grad = place if place.dtype == parameter.dtype else place.to(parameter.dtype)
            else:
                parameter.grad = None  # a worker without samples may have one that counts for nothing


def _places(buffer: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Those of `tensors` at the beginning of a flat buffer, in their shapes."""
    sizes = [tensor.numel() for tensor in tensors]
    parts = torch.split(buffer[: sum(sizes)], sizes)
    # of each the changes are counted by itself
    return [part.view(tensor.shape).data for part, tensor in zip(parts, tensors, strict=True)]


class TorchExchange(GradientExchange):
    """The exchange of all `parameters` (by name) that a training changes."""

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        norms: Sequence[torch.nn.Module],
        comm: Comm,
        bucket_bytes: int,
        prefix: str,
        workers: Workers | None = None,
    ) -> None:
        """`norms`: layers whose running statistics travel too. `workers`: without it, every process is one."""
        workers = workers or Workers.one_per_process(comm)
        trained = list(parameters.values())
        check_types(parameters)
        self._norms = norms
        self._kept: dict[torch.nn.Parameter, torch.Tensor] = {}  # global gradients of parameters frozen after the sum
        self.touched: dict[torch.nn.Parameter, tuple[int, int]] = {}  # identity and version of what was accumulated
        self.additions = 0
        behind = trailer_length(workers, len(trained))
        buckets = layout_buckets(trained, statistics_of(norms), bucket_bytes, comm, prefix, behind)
        super().__init__(comm, buckets, workers)
        self._buckets, self._last = buckets, buckets[-1]
        self._bucket_of = {parameter: bucket for bucket in buckets for parameter in bucket.views}
        self._names = {parameter: name for name, parameter in parameters.items()}
        self._hooks = [p.register_post_accumulate_grad_hook(self._on_gradient) for p in trained]  # type: ignore[no-untyped-call]

    def _on_gradient(self, parameter: torch.nn.Parameter) -> None:
        if parameter.grad is None:
            return
        if not self._open:  # a backward outside run.backward() accumulates here; the next run.backward() sends it
            self.touched[parameter] = (id(parameter.grad), parameter.grad._version)
            self.additions += 1
            return
        bucket = self._bucket_of[parameter]
        bucket.take(parameter)
        if bucket.is_full():
            self.send_full()

    def begin(self, weight: float, measure_norm: bool, share: float | None = None) -> None:
        self._check_untouched()
        self.touched.clear()
        super().begin(weight, measure_norm, share)

    def _check_untouched(self) -> None:
        """Raises TrainingError if a gradient that is not global yet was changed by other means than backward."""
        for parameter, (identity, version) in self.touched.items():
            gradient = parameter.grad
            if gradient is None or id(gradient) != identity or gradient._version == version:
                continue
            if gradient.is_sparse or bool(gradient.any()):
                raise TrainingError(
                    f"the gradient of {self._names[parameter]} was changed between loss.backward() and run.backward(), "
                    "where it is that of this worker alone; change gradients after run.backward(), which makes "
                    "them global"
                )

    def gradient(self) -> dict[torch.nn.Parameter, torch.Tensor]:
        """Of this process, times its weight, before the sum: in the `contribute` of `send_rest`."""
        return {parameter: place for bucket in self._buckets for parameter, place in bucket.own_views.items()}

    def send_rest(self, contribute: Any) -> None:
        self._active = [norm.training for norm in self._norms for _ in statistics_of([norm])]
        self._last.write_statistics(self._active, self._share)
        super().send_rest(contribute)

    def deliver(self, factor: float = 1.0, statistics_factor: float = 1.0) -> None:
        super().deliver(factor, statistics_factor)
        self._last.deliver_statistics(self._active)

    def carry(self, before: float, weight: float) -> None:
        """What backward has accumulated is of batches with weight `before`; the next one has `weight`."""
        self._check_untouched()
        for bucket in self._buckets:
            bucket.carry(before, weight)
        self.touched = {p: (id(p.grad), p.grad._version) for p in self.touched if p.grad is not None}

    @property
    def has_local(self) -> bool:
        return bool(self.touched) or any(bucket.carried for bucket in self._buckets)

    def _accumulates(self, parameter: torch.nn.Parameter) -> bool:
        """Whether `parameter` has gradients that the next sum is to have."""
        if parameter in self._bucket_of[parameter].carried:
            return True
        return parameter in self.touched and parameter.grad is not None

    def lacks(self, parameter: torch.nn.Parameter) -> bool:
        """Whether `parameter`, which is in no bucket yet, has a gradient of this worker alone."""
        return parameter not in self._bucket_of and not self.is_global(parameter)

    def is_global(self, parameter: torch.nn.Parameter) -> bool:
        """Whether the gradient of `parameter`, which is not trained, is none or one of a sum of the time before."""
        return parameter.grad is None or self._kept.get(parameter) is parameter.grad

    def take_over(self, before: GradientExchange) -> list[str]:
        left = super().take_over(before)
        assert isinstance(before, TorchExchange)
        self._kept |= before._kept
        for parameter, name in before._names.items():
            if parameter in self._bucket_of:
                continue
            if before._accumulates(parameter):
                left.append(name)
            elif parameter.grad is not None:
                self._kept[parameter] = parameter.grad
        for parameter in self._bucket_of:  # thawed, and a backward has come before this
            if before.lacks(parameter):
                self.touched[parameter] = (id(parameter.grad), parameter.grad._version)  # type: ignore[union-attr]
        self.additions = before.additions
        self.touched.update((p, seen) for p, seen in before.touched.items() if p in self._bucket_of)
        for old in before._buckets:
            for parameter, gradient in old.carried.items():
                if parameter in self._bucket_of:
                    bucket = self._bucket_of[parameter]
                    bucket.carried[parameter] = gradient.to(bucket.buffer.dtype)
        return left

    def close(self) -> None:
        super().close()
        for hook in self._hooks:
            hook.remove()


def statistics_of(norms: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    """The running statistics of normalisation layers that keep some, in order."""
    return [s for norm in norms for s in (norm.running_mean, norm.running_var) if isinstance(s, torch.Tensor)]


def check_types(parameters: Mapping[str, torch.nn.Parameter]) -> None:
    """Raises TrainingError for parameters whose gradients cannot be summed."""
    for name, parameter in parameters.items():
        if not parameter.dtype.is_floating_point or parameter.is_sparse:
            raise TrainingError(
                f"parameter {name} has type {parameter.dtype}; gradients are summed for floating-point types: "
                "make it two real parameters, or freeze it"
            )


def layout_buckets(
    parameters: Sequence[torch.nn.Parameter],
    statistics: Sequence[torch.Tensor],
    bucket_bytes: int,
    comm: Comm,
    prefix: str,
    behind: int,
) -> list[TorchBucket]:
    """Buckets of about `bucket_bytes`; the last one has `statistics` and a trailer of `behind` values too."""
    groups = group_parameters(
        [p.numel() * p.element_size() for p in parameters],
        [(_SUMMED_AS.get(p.dtype, p.dtype), p.device) for p in parameters],
        bucket_bytes,
    )
    return [
        TorchBucket(
            f"{prefix}.gradients.{index}",
            comm,
            [parameters[number] for number in group],
            statistics if group is groups[-1] else (),
            behind if group is groups[-1] else 0,
        )
        for index, group in enumerate(groups)
    ]
