"""Exponential moving averages of the weights, over samples, so that they mean the same whatever the batch sizes are.

Let d be the decay, B0 the global batch that the learning rate is for, and w(s) the weights at the end of the iteration
that sample s was in. After n samples the average is

    sum over s = 1 ... n of  q**(n - s) * w(s)  /  sum over s = 1 ... n of  q**(n - s),      q = d**(1 / B0)

so an iteration of B samples does

    average += c * (weights - average),      c = (1 - d**(B / B0)) / (1 - d**(n / B0))

With B = B0 the numerator is 1 - d, as in torch.optim.swa_utils.get_ema_multi_avg_fn(d). Its exponent is the scaling
rule of averages (arXiv 2307.13813): two iterations of B samples, or one of 2 B with the same weights, give the same
average. The denominator is the bias correction of Adam (arXiv 1412.6980, section 3): the weights before training count
for nothing, and the average after the first iteration is its weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from dynamix_ps.errors import CheckpointError, TrainingError
from worker_hooks.saved.saved_fields import read_number, read_table
from worker_hooks.torch.parameters import TorchParameters, precise

AVERAGES = "averaged weights"  # their name in checkpoints, which no object of the script can have
Key = torch.Tensor | tuple[nn.Module, str]  # a parameter; a buffer by its module and its name there


@dataclass(slots=True)
class Average:
    """Of one parameter or buffer."""

    mean: torch.Tensor  # of halves in float32, so that small changes are not lost
    samples: float  # that it is over; in the unit of the batch sizes


class WeightAverages:
    """Averages of everything that is trained, and of the buffers with floating-point values that checkpoints keep.

    Running statistics of batch norm are such buffers: their average stands for the statistics of the averaged weights.
    What was never trained is as it is. An average goes on where a parameter is frozen later, and begins anew where
    another one takes its place.
    """

    def __init__(self, parameters: TorchParameters, decay: float, reference_batch: float) -> None:
        """`reference_batch`: B0. Raises TrainingError for a decay that is none."""
        if not 0 < decay < 1:
            raise TrainingError(
                f"attach(ema_decay={decay}): expected a number above 0 and below 1, the part of the average that an "
                "iteration keeps, such as 0.999"
            )
        self.decay = decay
        self.reference_batch = reference_batch
        self._parameters = parameters
        self._averages: dict[Key, Average] = {}
        self._due = 0.0  # samples of the iteration whose weights are in no average yet
        self._trained: Sequence[Key] = ()  # in it, with the buffers that there were
        self.follow()

    def follow(self) -> None:
        """The script has changed what is trained: leave what is gone, and go along to other types and devices."""
        self._buffers = [(module, name) for _, module, name in self._parameters.buffers()]
        present = {*self._parameters.named().values(), *self._buffers}
        self._trained = [key for key in self._trained if key in present]
        for key, one in list(self._averages.items()):
            if key in present and _fits(one, tensor := _tensor(key)):
                one.mean = one.mean.to(tensor.device, precise(tensor.dtype))
            else:
                del self._averages[key]

    def stepped(self, samples: float) -> None:
        """An optimizer has changed weights, in an iteration of so many samples. Once more for a second optimizer."""
        self._due, self._trained = samples, [*self._parameters.trained.values(), *self._buffers]

    def end_iteration(self) -> None:
        """Take in the weights as they are. Before the next iteration, and only there, so on all workers alike."""
        if not self._due:
            return
        for key in self._trained:
            tensor = _tensor(key)
            if key not in self._averages or not _fits(self._averages[key], tensor):
                self._averages[key] = Average(tensor.detach().to(precise(tensor.dtype), copy=True), 0.0)
        alike: dict[tuple[Any, ...], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for key, one in self._averages.items():
            means, tensors = alike.setdefault((one.samples, one.mean.dtype, one.mean.device), ([], []))
            means.append(one.mean)
            tensors.append(_as(one.mean.dtype, _tensor(key)))
            one.samples += self._due
        for (samples, *_), (means, tensors) in alike.items():
            self._function(samples)(means, tensors, 0)
        self._due = 0.0

    def _function(self, samples: float) -> Callable[..., None]:
        """Torch's own, for an average that is over so many samples so far."""
        log_per_sample = math.log(self.decay) / self.reference_batch
        new = math.expm1(log_per_sample * self._due)
        everything = math.expm1(log_per_sample * (samples + self._due))
        function: Callable[..., None] = get_ema_multi_avg_fn(1 - new / everything)  # type: ignore[no-untyped-call]
        return function

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The models have their averages in place of their weights. Afterwards these are back, bit for bit.

        The averages stay as they are, whatever happens in here.
        """
        own = {key: _tensor(key).data.clone() for key in self._averages}
        try:
            for key, value in own.items():
                _tensor(key).data.copy_(self._newest(self._averages[key], value))
            yield
        finally:
            for key, value in own.items():
                _tensor(key).data.copy_(value)

    def _newest(self, one: Average, tensor: torch.Tensor) -> torch.Tensor:
        """The average with the weights that are due, as `end_iteration` will make it."""
        if not self._due:
            return one.mean
        mean = one.mean.clone()
        self._function(one.samples)([mean], [_as(mean.dtype, tensor)], 0)
        return mean

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The averages by the names of what they are of."""
        kept = {name: one for name, key in self._named().items() if (one := self._averages.get(key))}
        return {
            "means": {name: one.mean for name, one in kept.items()},
            "samples": {name: one.samples for name, one in kept.items()},
            "due": self._due,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned. Raises CheckpointError if it is not of these models."""
        found = read_table(state, "averages", ("means", "samples", "due"))
        samples, named = read_table(found["samples"], "averages.samples", found["means"]), self._named()
        averages = {}
        for name, mean in found["means"].items():
            if name not in named:
                raise CheckpointError(f"averages.means has {name!r}, which the model lacks")
            tensor = _tensor(named[name])
            if mean.shape != tensor.shape:
                raise CheckpointError(
                    f"averages.means.{name}: got shape {tuple(mean.shape)}, expected {tuple(tensor.shape)}"
                )
            moved = mean.to(tensor.device, precise(tensor.dtype), copy=True)
            averages[named[name]] = Average(moved, read_number(samples[name], f"averages.samples.{name}", 0.0))
        self._averages = averages
        self.stepped(read_number(found["due"], "averages.due", 0.0))

    def _named(self) -> dict[str, Key]:
        buffers = {name: (module, key) for name, module, key in self._parameters.buffers()}
        return {**self._parameters.named(), **buffers}


def _tensor(key: Key) -> torch.Tensor:
    if isinstance(key, torch.Tensor):
        return key
    module, name = key
    tensor = module._buffers[name]
    assert tensor is not None, f"buffer {name} was there when the parameters were looked up"
    return tensor


def _as(dtype: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == dtype else tensor.detach().to(dtype)


def _fits(one: Average, tensor: torch.Tensor) -> bool:
    return one.mean.shape == tensor.shape
