"""`run.gather`: the rows of all workers as one tensor, through which a loss has its gradient.

gathers.py has the sums behind it, and why the gradient is that of one process.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from dynamix_ps.errors import TrainingError
from worker_hooks.gathers import LOOKS, Gathers, factor
from worker_hooks.torch import watched_calls

if TYPE_CHECKING:
    from worker_hooks.training import Training

_SEED = 1  # of the directions in which gradients are looked at: the same on all workers


def gather(training: Training, tensor: torch.Tensor) -> torch.Tensor:
    """What `run.gather` returns."""
    session, gathers, loops = training.session, training.gathers, training.loops
    if not isinstance(tensor, torch.Tensor) or not tensor.dim() or tensor.layout != torch.strided:
        found = type(tensor).__name__ if not isinstance(tensor, torch.Tensor) else f"a {tensor.layout} tensor of shape"
        shape = f" {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else ""
        raise TrainingError(f"run.gather() got {found}{shape}; expected a dense tensor with one row per sample or more")
    if session.workers.count == 1:
        return tensor
    if watched_calls.is_in_backward():
        raise TrainingError(
            "run.gather() in a backward pass, as where torch.utils.checkpoint computes a part of the model again; "
            "call it outside of what is computed again"
        )
    now, with_gradient = training.now, tensor.requires_grad and torch.is_grad_enabled()
    if with_gradient and not now.has_batch:
        raise TrainingError(
            "run.gather() of rows with a gradient belongs inside `for ... in run.batches(...)`; elsewhere call it "
            "under torch.no_grad()"
        )
    if with_gradient:
        loops.settle(tensor)
    elif now.has_batch and len({tuple(map(bool, one.step.sizes)) for one in loops.taken.candidates(now.batch)}) > 1:
        raise TrainingError(
            "run.gather() of rows without a gradient while a batch is taken ahead that other workers have a share of: "
            "nothing shows which batch the rows are of; gather rows with a gradient first"
        )
    weight = now.weight if now.has_batch else 1.0
    if session.comm.size == 1:  # the rows of all workers are here
        rows, begin = tensor.detach().clone(), 0
    else:
        own = tensor.detach() if weight else tensor.detach()[:0]
        what = f"rows of shape {list(tensor.shape[1:])}, {str(tensor.dtype).removeprefix('torch.')}"
        expected = [slot for slot, size in enumerate(now.batch.step.sizes) if size] if now.has_batch else ()
        told = gathers.bytes_of_all(what, _bytes_of(own), with_gradient, expected)
        before = sum(len(part) for slot, part in told.items() if slot < session.workers.here.start)
        rows = _tensor_of(b"".join(told.values()), tensor)
        begin = before * len(rows) // max(sum(map(len, told.values())), 1)
    if not with_gradient:
        return rows
    return GatheredRows.apply(tensor, rows, begin, factor(weight), _Look(gathers))  # type: ignore[no-any-return, no-untyped-call]


def _bytes_of(rows: torch.Tensor) -> bytes:
    if not rows.numel():
        return b""
    return rows.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _tensor_of(packed: bytes, like: torch.Tensor) -> torch.Tensor:
    """Rows on the device of `like`, of its type."""
    shape = (-1, *like.shape[1:]) if packed else (0, *like.shape[1:])
    flat = torch.frombuffer(bytearray(packed), dtype=torch.uint8) if packed else torch.empty(0, dtype=torch.uint8)
    return flat.view(like.dtype).reshape(shape).to(like.device)


class _Look:
    """Sees the gradient with respect to all rows."""

    def __init__(self, gathers: Gathers) -> None:
        self._gathers = gathers

    def at(self, gradient: torch.Tensor) -> None:
        """Raises TrainingError where nobody sums the gradients."""
        if not watched_calls.is_in_backward():
            raise TrainingError(
                "torch.autograd.grad() through run.gather(): what it returns is the gradient of this worker's rows "
                "times a factor that only run.backward() takes out; leave the gathered rows out of that loss"
            )
        rows = gradient.detach().reshape(len(gradient), math.prod(gradient.shape[1:])).double()
        across, along = _directions(*rows.shape)
        seen = ((rows @ along.to(rows.device)) * across.to(rows.device)).sum(0)
        self._gathers.looks += seen.cpu().numpy()
        self._gathers.norm += float(rows.norm())


@lru_cache(maxsize=16)
def _directions(rows: int, values: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(_SEED)
    return (
        torch.randn(rows, LOOKS, generator=generator, dtype=torch.float64),
        torch.randn(values, LOOKS, generator=generator, dtype=torch.float64),
    )


class GatheredRows(torch.autograd.Function):
    """Own rows in, all rows out."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, rows: torch.Tensor, begin: int, times: float, look: _Look) -> torch.Tensor:
        ctx.begin, ctx.shape, ctx.times, ctx.look = begin, own.shape, times, look
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.look.at(gradient)
        if not ctx.times:  # no row of this worker counts
            return gradient.new_zeros(ctx.shape), None, None, None, None
        own = gradient[ctx.begin : ctx.begin + ctx.shape[0]]
        return own * ctx.times, None, None, None, None
