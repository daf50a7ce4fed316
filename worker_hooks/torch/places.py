"""The places of gradients in a flat buffer, and what the script does with tensors that are such places.

Torch lets a script keep a gradient by reference, also a view of it: after `zero_grad()` the next backward pass gets new
memory. It also lets a script put a tensor of its own into `.grad`, such as a part of one flat tensor, and backward adds
to it in place. `Places.look` sees both.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from dynamix_ps.errors import TrainingError

_left: list[Any] = []  # memory that arrays of the script may still refer to
_SHARED_MEMORY = "/dev/shm"  # where torch puts memory that it moves


class Places:
    """The places of the gradients of `parameters`, then of running `statistics`, then of a trailer, in `buffer`."""

    def __init__(
        self,
        buffer: torch.Tensor,
        parameters: Sequence[nn.Parameter],
        statistics: Sequence[torch.Tensor],
    ) -> None:
        self.buffer, self._parameters = buffer, parameters
        self._storage = buffer.untyped_storage()._cdata  # stays the same, whatever memory it has
        tensors = (*parameters, *statistics)
        sizes = [tensor.numel() for tensor in tensors]
        parts = torch.split(buffer[: sum(sizes)], sizes)
        # of each the changes are counted by itself
        views = [part.view(tensor.shape).data for part, tensor in zip(parts, tensors, strict=True)]
        self.views = views[: len(parameters)]
        self.statistics = list(zip(statistics, views[len(parameters) :], strict=True))
        self.gradients = buffer[: sum(sizes[: len(parameters)])]
        behind = buffer[sum(sizes) :]
        self.trailer = behind.numpy() if buffer.device.type == "cpu" else behind  # numpy takes a tenth of the time
        del parts, views, behind
        self._users = _users_of(self._storage)
        view = self.views[0] if self.views else None
        self._references = sys.getrefcount(view)  # as in `look`
        alone = nn.Parameter(buffer[:0])
        alone.grad = torch.empty_like(alone)
        gradient = alone.grad
        self._references_of_gradient = sys.getrefcount(gradient) + 1  # and the argument of `_is_held`, or the list

    def look(self) -> tuple[set[int], bool]:
        """Between two sums: the numbers of parameters whose `.grad` is a tensor that the script holds, and whether the
        script keeps gradients that are places here, or views of them."""
        apart, keeps = set(), _users_of(self._storage) > self._users
        for number, parameter in enumerate(self._parameters):
            gradient, view = parameter.grad, self.views[number]
            if gradient is view:
                continue
            keeps = keeps or sys.getrefcount(view) > self._references
            if gradient is not None and self._is_held(gradient):
                apart.add(number)
        return apart, keeps

    def are_known(self) -> bool:
        """Whether anything but `.grad` knows a place, or a view of one."""
        if _users_of(self._storage) > self._users:
            return True
        for number, parameter in enumerate(self._parameters):
            view = self.views[number]
            usual = self._references_of_gradient if parameter.grad is view else self._references
            if sys.getrefcount(view) > usual:
                return True
        return False

    def _is_held(self, gradient: torch.Tensor) -> bool:
        """Whether anything but `.grad` and the caller knows this tensor or its memory."""
        if gradient.is_sparse:
            return False
        return sys.getrefcount(gradient) > self._references_of_gradient or _tensors_on(gradient) > 1

    def leave(self, memory: NDArray[Any] | None) -> Places:
        """All tensors in `memory`, which `buffer` is in, get other memory, with the same values. Returns new places.

        On a GPU nothing is copied: the new places are in another buffer there.

        Raises TrainingError if there is no memory for it.
        """
        statistics = [statistic for statistic, _ in self.statistics]
        if self.buffer.device.type != "cpu":
            return Places(torch.zeros_like(self.buffer), self._parameters, statistics)
        _left.append(memory)
        needed_bytes, state = self.buffer.nbytes, os.statvfs(_SHARED_MEMORY)
        if needed_bytes > state.f_bavail * state.f_frsize:
            raise TrainingError(
                f"the script keeps gradients of the sum before, and {_SHARED_MEMORY} has no room for {needed_bytes:,} "
                "bytes of them; keep copies (parameter.grad.clone()), or make it larger"
            )
        self.buffer.untyped_storage().share_memory_()
        return Places(torch.from_numpy(memory), self._parameters, statistics)


def _tensors_on(buffer: torch.Tensor) -> int:
    """How many tensors share the memory of `buffer`."""
    storage = buffer.untyped_storage()  # which counts too
    return _users_of(storage._cdata) - 1


def _users_of(storage: int) -> int:
    """How many tensors, and storages in Python, share this memory."""
    return torch._C._storage_Use_Count(storage)
