"""A few numbers that show whether the weights of two workers differ. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

EVERY = 5  # so many sums have one sample: a call for each tensor costs more than its values (chosen by us)
ROUND = 50  # sums until all tensors have been sampled (chosen by us)
SAMPLE = 4096  # values of one tensor that are sampled at once (chosen by us)

Tensor = TypeVar("Tensor")


class WeightSamples(Generic[Tensor]):
    """Samples of named tensors, in turn.

    A sample is two numbers that almost any change shows: its direction, the sum of the values over their norm, and its
    size, log2 of the norm. Values that are not finite give the same two numbers everywhere: a training that has broken
    on all workers alike is not a difference between them.
    """

    def __init__(self, tensors: Mapping[str, Tensor], measure: Callable[[Tensor, int], tuple[float, float]]) -> None:
        """`measure` returns sum and norm of a tensor's values in `part_of(its size, offset)`, laid flat."""
        self._tensors = list(tensors.items())
        self._measure = measure
        self._turns = min(len(self._tensors), ROUND // EVERY)

    def part(self, number: int) -> tuple[float, float]:
        """Of a part of the tensors; ROUND successive numbers take in all of them. Zeros where none has its turn."""
        direction = size = 0.0
        turn, rest = divmod(number, EVERY)
        for _, tensor in self._tensors[turn % self._turns :: self._turns] if not rest else ():
            one = self._sample(tensor, number)
            direction, size = direction + one[0], size + one[1]
        return direction, size

    def each(self, number: int) -> dict[str, tuple[float, float]]:
        """Of every tensor by itself."""
        return {name: self._sample(tensor, number) for name, tensor in self._tensors}

    def _sample(self, tensor: Tensor, number: int) -> tuple[float, float]:
        total, norm = self._measure(tensor, number // (EVERY * self._turns))
        if not (math.isfinite(norm) and math.isfinite(total)):
            return 0.0, 1e6
        return (total / norm, math.log2(norm)) if norm else (0.0, -1e6)


def part_of(size: int, offset: int) -> slice:
    """About SAMPLE of `size` values, evenly spaced; another `offset` takes others."""
    stride = max(size // SAMPLE, 1)
    return slice(offset % stride, None, stride)
