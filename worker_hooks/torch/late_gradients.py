"""Gradients that come after `run.backward()` has returned: whoever reads or sets one waits for all of them.

While some are late, `Tensor.grad` is a property in Python. So it does not matter who asks: the script, clipping, a
GradScaler, an optimizer that is not stepped by buckets. What reads gradients in C++ alone, which is a backward pass, is
seen by watched_calls.py. After `optimizer.step()` the steps to come hold the gradients that they need (late_steps.py),
so `zero_grad()` waits for nothing.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import dynamix_ps
import worker_hooks
from worker_hooks.exchange.gradient_exchange import Bucket, LateBuckets
from worker_hooks.sums import Sums
from worker_hooks.torch.late_weights import LateWeights

_GRAD: Any = torch._C.TensorBase.grad  # as torch has it
_NOT_THE_SCRIPT = tuple(str(Path(one.__file__).parent) for one in (torch, dynamix_ps, worker_hooks) if one.__file__)
_watching: list[LateGradients] = []
_undo: list[Callable[[], None]] = []


class LateGradients(LateBuckets):
    """Those of one training, in every iteration anew.

    Attributes:
        sums: of the training, once it is complete.
        bucket_of: the bucket with the gradient of a parameter; none: it is in no sum.
        held: gradients of steps to come, by parameter.
        weights: those whose steps are to come.
    """

    sums: Sums
    bucket_of: Callable[[torch.Tensor], Bucket | None]

    def __init__(self, tell_people: Callable[[str, str], None]) -> None:
        """`tell_people` gets a sentence for each reason why all sums are waited for."""
        super().__init__()
        self._tell_people = tell_people
        self._told: set[str] = set()
        self._is_read, self._batch_has_begun = False, True
        self.held: dict[torch.Tensor, torch.Tensor | None] = {}
        self.weights = LateWeights(self._weight_is_read)

    def tell(self, reason: str) -> None:
        """All sums are waited for, for this reason, which people hear once."""
        if reason not in self._told and self.sums.leads:
            self._told.add(reason)
            self._tell_people("overlap", f"{reason}, so each step waits for all sums")

    def begin(self, buckets: Sequence[Bucket]) -> None:
        super().begin(buckets)
        self._batch_has_begun = False
        if buckets and self not in _watching:
            _watching.append(self)
            if len(_watching) == 1:
                _wrap_zero_grad(torch.optim.Optimizer, _parameters_of_optimizer)
                _wrap_zero_grad(torch.nn.Module, torch.nn.Module.parameters)
            setattr(torch.Tensor, "grad", _WATCHED)  # noqa: B010  (not of the type that torch declares)

    def batch_begun(self) -> None:
        """From now on weights are read by the forward pass."""
        self._batch_has_begun = True

    def end(self) -> None:
        if self in _watching:
            _watching.remove(self)
            if not _watching:
                del torch.Tensor.grad
                while _undo:
                    _undo.pop()()

    def due_buckets(self) -> list[Bucket]:
        """Those whose sums are not there."""
        return list(self.due)

    def then(self, bucket: Bucket, step: Callable[[], object]) -> None:
        """Once the sum of this bucket is there, make this step with it."""
        before = self.due[bucket]

        def arrived() -> None:
            before()
            step()

        self.due[bucket] = arrived

    def sees(self, tensor: torch.Tensor, sets: bool) -> None:
        """Somebody is about to read the gradient of this tensor, or to set it."""
        if self.bucket_of(tensor) not in self.due:
            return
        if tensor in self.held and (sets or gradient_of(tensor) is not self.held[tensor]):
            return  # what the step to come has stays as it is
        if not self._is_read:
            self._is_read = True
            self.tell(f"{_line_of_script(sys._getframe())} reads or sets gradients whose sums are under way")
        self.sums.complete()

    def drops(self, parameters: Iterable[torch.Tensor]) -> None:
        """The script drops the gradients of these parameters."""
        with self.arriving:
            for parameter in parameters:
                if parameter in self.held and self.bucket_of(parameter) in self.due:
                    set_gradient(parameter, None)

    def _weight_is_read(self, weight: torch.Tensor) -> None:
        bucket = self.bucket_of(weight)
        if not self._batch_has_begun:
            self.tell(f"{_line_of_script(sys._getframe())} reads weights between a step and the next batch")
        if bucket is not None:
            self.sums.arrive(bucket)


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Its `.grad`, whether it is late or not."""
    with torch._C.DisableTorchFunctionSubclass():
        found: torch.Tensor | None = _GRAD.__get__(tensor)
    return found


def set_gradient(tensor: torch.Tensor, gradient: torch.Tensor | None) -> None:
    """Set its `.grad`, whether it is late or not."""
    with torch._C.DisableTorchFunctionSubclass():
        _GRAD.__set__(tensor, gradient)


def _see(tensor: torch.Tensor, sets: bool) -> ExitStack:
    """While the result is open, no other thread makes a step with the gradient of this tensor."""
    with ExitStack() as locks:
        for one in tuple(_watching):
            locks.enter_context(one.arriving)
            one.sees(tensor, sets)
        return locks.pop_all()


def _get(tensor: torch.Tensor) -> Any:
    with _see(tensor, sets=False):
        return gradient_of(tensor)


def _set(tensor: torch.Tensor, value: Any) -> None:
    with _see(tensor, sets=True):
        set_gradient(tensor, value)


def _delete(tensor: torch.Tensor) -> None:
    with _see(tensor, sets=True), torch._C.DisableTorchFunctionSubclass():
        _GRAD.__delete__(tensor)


_WATCHED = property(_get, _set, _delete)


def _wrap_zero_grad(kind: Any, parameters_of: Callable[[Any], Iterable[torch.Tensor]]) -> None:
    original = kind.zero_grad

    @functools.wraps(original)
    def zero_grad(one: Any, set_to_none: bool = True) -> Any:
        if set_to_none:
            for late in tuple(_watching):
                late.drops(parameters_of(one))
        return original(one, set_to_none)

    kind.zero_grad = zero_grad
    _undo.append(lambda: setattr(kind, "zero_grad", original))


def _parameters_of_optimizer(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _line_of_script(frame: FrameType | None) -> str:
    """The innermost line that is neither ours nor torch's."""
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_SCRIPT):
        frame = frame.f_back
    return "another thread" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
