"""A bucket of torch gradients: where they are put, summed, and handed to the parameters.

The place of the sum becomes the gradient of its parameter: nothing is copied. Torch lets a script keep a gradient by
reference, or put a tensor of its own into `.grad`. Where a script does so, gradients get memory of their own, and the
sum is copied into it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dynamix_ps.comm import Comm
from dynamix_ps.errors import TrainingError
from worker_hooks.exchange.gradient_exchange import Bucket, bucket_layout
from worker_hooks.torch.places import Places

_SUMMED_AS = {torch.float16: torch.float32, torch.bfloat16: torch.float32}  # halves would lose the small gradients


class TorchBucket(Bucket):
    """Gradients of `parameters`, of the type and device of `like`; then `statistics`, then a trailer.

    Args:
        statistics: running statistics of normalisation layers (running_statistics.py): their weighted mean goes
            back into them.
        trailer_values: number of values of the trailer; 0: another bucket has it.
    """

    def __init__(
        self,
        name: str,
        comm: Comm,
        like: torch.nn.Parameter,
        parameters: Sequence[torch.nn.Parameter],
        statistics: Sequence[torch.Tensor] = (),
        trailer_values: int = 0,
    ) -> None:
        self.name, self.parameters = name, parameters
        dtype, device = _SUMMED_AS.get(like.dtype, like.dtype), like.device
        self.rounded = sum(p.numel() for p in parameters)
        self.trailer_begin = self.rounded + sum(s.numel() for s in statistics)
        length = self.trailer_begin + trailer_values
        on_cpu = device.type == "cpu"
        if on_cpu or not comm.sums_on(device.type):
            self.memory = comm.allocate(length, str(dtype).removeprefix("torch."))
            if not on_cpu:
                comm.travels_through(name, self.memory)
        buffer = torch.from_numpy(self.memory) if on_cpu else torch.zeros(length, dtype=dtype, device=device)
        places = Places(buffer, parameters, statistics)
        own = Places(torch.zeros_like(buffer), parameters, statistics) if comm.sends_again else places
        self._use(places, own)
        self.size_bytes = buffer.nbytes
        self._missing: set[int] = set()  # numbers of parameters
        self._weight, self._has_samples = 0.0, False
        self.carried: dict[torch.nn.Parameter, torch.Tensor] = {}
        self._has_halves = any(p.dtype != dtype for p in parameters)
        self._apart: set[int] = set()  # numbers of parameters whose gradients are tensors of the script
        self._copies = False  # gradients have memory of their own, because the script keeps some

    def _use(self, places: Places, own: Places) -> None:
        self._places, self._own_places = places, own
        self.buffer, self.own = places.buffer, own.buffer

    def is_known_elsewhere(self) -> bool:
        """After backward: whether the script may see its gradients without a look at `.grad`."""
        return self._copies or bool(self._apart) or self._places.are_known()

    def own_gradients(self) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Of this process, times its weight, before the sum."""
        return zip(self.parameters, self._own_places.views, strict=True)

    def open(self, weight: float, has_samples: bool) -> None:
        self._weight, self._has_samples = weight, has_samples
        self._apart, keeps = self._places.look()
        if keeps and not self._copies:
            before, places = self._places, self._places.leave(self.memory)
            self._use(places, places if self._own_places is before else self._own_places)
            self._copies = True
        self._missing = set(range(len(self.parameters)))
        self.in_place = not (self._has_halves or self._copies or self._apart)
        self.lacking = ()

    def take(self, number: int, gradient: torch.Tensor) -> bool:
        """Put a new gradient of parameter `number` into its place, scaled. Returns whether the bucket is full.

        The place of the sum becomes the gradient at once: the memory of backward is free for what comes next. A tensor
        of the script stays the gradient.

        Raises TrainingError if a gradient comes twice.
        """
        try:
            self._missing.remove(number)
        except KeyError:
            raise TrainingError(
                "a gradient arrived twice in one run.backward(): use checkpoint(..., use_reentrant=False), "
                "and call run.backward() once for the sum of all losses"
            ) from None
        parameter, place = self.parameters[number], self._own_places.views[number]
        if gradient.requires_grad:
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
        if self.in_place or not (parameter.dtype != place.dtype or self._copies or number in self._apart):
            parameter.grad = self._places.views[number]
        return not self._missing

    def is_full(self) -> bool:
        return not self._missing

    def fill_gaps(self) -> None:
        if not self._missing:
            return
        self.in_place = False
        lacking = []
        for number, parameter in enumerate(self.parameters):
            if number not in self._missing:
                continue
            if self._has_samples and parameter.grad is not None:
                self.take(number, parameter.grad)  # an earlier backward outside run.backward() has accumulated it
            elif (more := self.carried.pop(parameter, None)) is not None:
                self._own_places.views[number].copy_(more)
            else:
                self._own_places.views[number].zero_()
                lacking.append(number)
        self.lacking = lacking
        self._missing.clear()

    def carry(self, before: float, weight: float) -> None:
        """The gradients so far are of batches with weight `before`; the next batch has another one.

        They stay where they are, scaled, so that the script can still drop them by zero_grad(). Where this worker has
        no samples they are set aside, because the gradients of the next batch count for nothing.
        """
        for number, (parameter, place) in enumerate(zip(self.parameters, self._places.views, strict=True)):
            if parameter.grad is None:
                continue
            if before and weight:
                parameter.grad.mul_(before / weight)
                continue
            if before:
                earlier = self.carried.get(parameter)
                scaled = parameter.grad.detach().to_dense().to(place.dtype) * before
                self.carried[parameter] = scaled if earlier is None else earlier.add_(scaled)
            if number in self._apart:
                parameter.grad.zero_()
            else:
                parameter.grad = None

    def squared(self, own: bool = False) -> float:
        gradients = (self._own_places if own else self._places).gradients
        return float(torch.dot(gradients, gradients))

    def is_finite(self) -> bool:
        return all(math.isfinite(float(end)) for end in torch.aminmax(self._places.gradients))

    def clear(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()

    def scale(self, factor: float) -> None:
        self._places.gradients.mul_(factor)

    def scale_statistics(self, factor: float) -> None:
        for statistic, place in self._places.statistics:
            torch.mul(place if factor else statistic, factor or 1.0, out=place)

    def write_statistics(self, active: Sequence[bool], share: float) -> None:
        """Put `share` times the running statistics into their places; zeros where they are not `active`."""
        for (statistic, place), counts in zip(self._own_places.statistics, active, strict=True):
            if counts and share:
                torch.mul(statistic, share, out=place)
            else:
                place.zero_()

    def deliver_statistics(self, active: Sequence[bool]) -> None:
        """Make the summed statistics those of the model."""
        for (statistic, place), counts in zip(self._places.statistics, active, strict=True):
            if counts:
                statistic.data.copy_(place)  # as batch norm does it itself: graphs that know the statistic stay valid

    def write_trailer(self, values: NDArray[np.float64]) -> None:
        trailer = self._own_places.trailer
        if isinstance(trailer, np.ndarray):
            trailer[:] = values
        else:
            trailer.copy_(torch.from_numpy(values))

    def read_trailer(self) -> NDArray[np.floating[Any]]:
        trailer = self._places.trailer
        values: NDArray[np.floating[Any]] = trailer.copy() if isinstance(trailer, np.ndarray) else trailer.cpu().numpy()
        return values

    def deliver(self, present: NDArray[np.bool_]) -> None:
        if self.in_place:
            return
        for number, has_gradient in enumerate(present.tolist()):
            parameter = self.parameters[number]
            if has_gradient:
                self._deliver(number)
            elif number in self._apart and parameter.grad is not None:
                parameter.grad.zero_()
            else:
                parameter.grad = None  # a worker without samples may have one that counts for nothing

    def _deliver(self, number: int) -> None:
        parameter, place = self.parameters[number], self._places.views[number]
        gradient, apart = parameter.grad, self._copies or number in self._apart
        if apart and gradient is not None and not gradient.is_sparse:
            gradient.copy_(place)
        elif apart or place.dtype != parameter.dtype:
            parameter.grad = place.to(parameter.dtype, copy=True)
        else:
            parameter.grad = place


def layout_buckets(
    parameters: Sequence[torch.nn.Parameter],
    statistics: Sequence[torch.Tensor],
    bucket_bytes: int,
    comm: Comm,
    prefix: str,
    behind: int,
) -> list[TorchBucket]:
    """Buckets of at most about `bucket_bytes`; the last one has `statistics` and a trailer of `behind` values too."""
    groups = bucket_layout(
        [p.numel() * p.element_size() for p in parameters],
        [(_SUMMED_AS.get(p.dtype, p.dtype), p.device) for p in parameters],
        bucket_bytes,
        comm.least_bucket_bytes,
    )
    return [
        TorchBucket(
            f"{prefix}.gradients.{index}",
            comm,
            parameters[(group or groups[-2])[0]],
            [parameters[number] for number in group],
            statistics if group is groups[-1] else (),
            behind if group is groups[-1] else 0,
        )
        for index, group in enumerate(groups)
    ]
