"""Gradients that come after `run.backward()` has returned: whoever reads or sets one waits for all of them.

While some are late, `Tensor.grad` is a property in Python. So it does not matter who asks: the script, clipping, a
GradScaler, an optimizer that is not stepped by buckets, `zero_grad`. What reads gradients in C++ alone, which is a
backward pass, is seen by watched_calls.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import dynamix_ps
import worker_hooks
from worker_hooks.exchange.gradient_exchange import Bucket, LateBuckets
from worker_hooks.sums import Sums

_GRAD: Any = torch._C.TensorBase.grad  # as torch has it
_NOT_THE_SCRIPT = tuple(str(Path(one.__file__).parent) for one in (torch, dynamix_ps, worker_hooks) if one.__file__)
_watching: list[LateGradients] = []


class LateGradients(LateBuckets):
    """Those of one training, in every iteration anew.

    Attributes:
        sums: of the training, once it is complete.
        bucket_of: the bucket with the gradient of a parameter; none: it is in no sum.
    """

    sums: Sums
    bucket_of: Callable[[torch.Tensor], Bucket | None]

    def __init__(self, tell_people: Callable[[str, str], None]) -> None:
        """`tell_people` gets a sentence for each reason why all sums are waited for."""
        super().__init__()
        self._tell_people = tell_people
        self._told: set[str] = set()
        self._is_read = False

    def tell(self, reason: str) -> None:
        """All sums are waited for, for this reason, which people hear once."""
        if reason not in self._told and self.sums.leads:
            self._told.add(reason)
            self._tell_people("overlap", f"{reason}, so each step waits for all sums")

    def begin(self, buckets: Sequence[Bucket]) -> None:
        super().begin(buckets)
        if buckets and self not in _watching:
            _watching.append(self)
            setattr(torch.Tensor, "grad", _WATCHED)  # noqa: B010  (not of the type that torch declares)

    def end(self) -> None:
        if self in _watching:
            _watching.remove(self)
            if not _watching:
                del torch.Tensor.grad

    def sees(self, tensor: torch.Tensor) -> None:
        """Somebody is about to read or set the gradient of this tensor."""
        if self.bucket_of(tensor) not in self.due:
            return
        if not self._is_read:
            self._is_read = True
            self.tell(f"{_line_of_script(sys._getframe())} reads or sets gradients between backward and step")
        self.sums.complete()


def _see(tensor: torch.Tensor) -> None:
    for one in tuple(_watching):
        one.sees(tensor)


def _get(tensor: torch.Tensor) -> Any:
    _see(tensor)
    return _GRAD.__get__(tensor)


def _set(tensor: torch.Tensor, value: Any) -> None:
    _see(tensor)
    _GRAD.__set__(tensor, value)


def _delete(tensor: torch.Tensor) -> None:
    _see(tensor)
    _GRAD.__delete__(tensor)


_WATCHED = property(_get, _set, _delete)


def _line_of_script(frame: FrameType | None) -> str:
    """The innermost line that is neither ours nor torch's."""
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_SCRIPT):
        frame = frame.f_back
    return "another thread" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
