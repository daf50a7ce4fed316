"""What the script calls in torch itself: `backward` of a loss, `scale` of a GradScaler, `step` of any optimizer, a hook
on a gradient, a loop over a DataLoader.

A script that accumulates gradients calls `loss.backward()` for all but the last part of its batch, and only these calls
know the losses. A GradScaler's factor is in the loss that it returns. An optimizer that belongs to no training changes
weights that nobody sums. A hook on a gradient waits for the sum. A DataLoader with `run.batch_sampler()` hands out the
batches of that run. So these functions of torch are wrapped while a training is open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from worker_hooks.torch.data.loader import RunBatchSampler

_OPTIONS = ("grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")  # of torch.autograd.backward
_SCALE = "_dynamix_scale"  # of the loss that a GradScaler has returned


class Watcher(Protocol):
    """A training that wants to know."""

    def sums_backward(self, losses: Sequence[torch.Tensor], options: Mapping[str, Any]) -> bool:
        """Whether the script's call of backward on these losses was a sum of gradients, which is complete now."""

    def sees_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """The script is about to call backward on these losses."""

    def saw_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """The script has called backward on these losses."""

    def sees_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step."""

    def saw_hook(self, tensor: torch.Tensor) -> None:
        """The script has registered a hook on the gradient of `tensor`."""


_watchers: list[Watcher] = []
_undo: list[Callable[[], None]] = []
_in_backward: list[None] = []  # one for each call that runs


def watch(watcher: Watcher) -> None:
    """Tell `watcher` of the script's calls from now on."""
    _watchers.append(watcher)
    if len(_watchers) == 1:
        _wrap_backward()
        _wrap_scale()
        _wrap_loops()
        for name in ("register_hook", "register_post_accumulate_grad_hook"):
            _wrap_registration(name)
        hook = register_optimizer_step_pre_hook(before_step)
        _undo.append(hook.remove)


def unwatch(watcher: Watcher) -> None:
    """Tell `watcher` no more."""
    _watchers.remove(watcher)
    if not _watchers:
        while _undo:
            _undo.pop()()


def scale_of(loss: Any) -> float:
    """The factor of the GradScaler that has returned this loss; 1 if none has."""
    return float(getattr(loss, _SCALE, 1.0))


def is_in_backward() -> bool:
    """Whether a backward pass adds to gradients now; torch.autograd.grad() adds to none."""
    return bool(_in_backward)


def before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for watcher in tuple(_watchers):
        watcher.sees_step(optimizer)


def _wrap_backward() -> None:
    original = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        options, watchers = dict(zip(_OPTIONS, args, strict=False)) | kwargs, tuple(_watchers)
        for watcher in watchers:
            if watcher.sums_backward(losses, options):
                return
        for watcher in watchers:
            watcher.sees_backward(losses)
        _in_backward.append(None)
        try:
            original(tensors, **options)
        finally:
            _in_backward.pop()
        for watcher in watchers:
            watcher.saw_backward(losses)

    torch.autograd.backward = backward
    _undo.append(lambda: setattr(torch.autograd, "backward", original))


def _wrap_scale() -> None:
    original = torch.amp.GradScaler.scale

    def scale(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
        scaled = original(scaler, outputs)
        if isinstance(scaled, torch.Tensor) and scaler.is_enabled():
            setattr(scaled, _SCALE, scaler.get_scale())
        return scaled

    setattr(torch.amp.GradScaler, "scale", scale)  # noqa: B010  (its type is overloaded)
    _undo.append(lambda: setattr(torch.amp.GradScaler, "scale", original))


def _wrap_registration(name: str) -> None:
    original = getattr(torch.Tensor, name)

    def register(tensor: torch.Tensor, hook: Any) -> Any:
        handle = original(tensor, hook)
        if tensor.is_leaf:
            for watcher in tuple(_watchers):
                watcher.saw_hook(tensor)
        return handle

    setattr(torch.Tensor, name, register)
    _undo.append(lambda: setattr(torch.Tensor, name, original))


def _wrap_loops() -> None:
    original = DataLoader.__iter__

    def iterate(loader: DataLoader[Any]) -> Any:
        sampler = loader.batch_sampler
        return sampler.batches_of(loader) if isinstance(sampler, RunBatchSampler) else original(loader)

    setattr(DataLoader, "__iter__", iterate)  # noqa: B010  (a method of another type)
    _undo.append(lambda: setattr(DataLoader, "__iter__", original))
