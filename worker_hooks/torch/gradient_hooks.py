"""Hooks of the script on the gradients of parameters: they see the global gradient, after the sum.

`parameter.register_hook` and `register_post_accumulate_grad_hook` run inside of backward, where a gradient is that of
one worker alone. Such a hook waits until the sum is there. It may then read the global gradient, change it, return
another one, or let an optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from dynamix_ps.errors import TrainingError

Hook = Callable[[Any], Any]


class GradientHooks:
    """The hooks of all parameters of a training: its own from `take_over` on, and the script's again after `close`."""

    def __init__(self) -> None:
        self._taken: dict[nn.Parameter, str] = {}  # parameters with hooks, and their names
        self.reached: dict[nn.Parameter, None] = {}  # by backward, of those with hooks, in this order
        self._collects = False  # backward runs inside of run.backward()

    def take_over(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Keep back what the script has registered on these parameters since the last call."""
        for name, parameter in parameters:
            for hooks, kind in ((_tensor_hooks(parameter), _OfTensor), (_post_hooks(parameter), _OfParameter)):
                for key, hook in hooks.items():
                    if not isinstance(hook, _Kept | OwnHook):
                        hooks[key] = kind(self, parameter, name, hook)
                        self._taken[parameter] = name

    @property
    def are_there(self) -> bool:
        return bool(self._taken)

    def open(self) -> None:
        """A sum begins: hooks wait for its end.

        Raises TrainingError where a hook would see more than the new gradient.
        """
        self._collects, self.reached = True, {}
        for parameter in self._taken:
            if _tensor_hooks(parameter) and parameter.grad is not None and bool(parameter.grad.any()):
                raise TrainingError(
                    f"parameter {self._taken[parameter]} has a hook (register_hook), which is to see the gradient of "
                    "this batch alone, and has the gradients of other batches already: call zero_grad() before "
                    "run.backward(), or change the gradient after it"
                )

    def close_sum(self) -> None:
        """All gradients are there."""
        self._collects = False

    @torch.no_grad()  # as in backward, where a hook may change a parameter in place
    def after_sum(self, of_any: Iterable[nn.Parameter]) -> None:
        """Call the hooks of the parameters that backward has reached, here or on another worker (`of_any`)."""
        for parameter in dict.fromkeys([*self.reached, *of_any]):
            if parameter.grad is None:
                continue
            for hook in list(_tensor_hooks(parameter).values()):
                changed = hook.original(parameter.grad) if isinstance(hook, _Kept) else None
                if changed is not None and changed is not parameter.grad:
                    parameter.grad.copy_(changed)
            for hook in list(_post_hooks(parameter).values()):
                if isinstance(hook, _Kept):
                    hook.original(parameter)

    def keeps_back(self, parameter: nn.Parameter) -> bool:
        """Whether a hook of this parameter is called after the sum."""
        self.reached[parameter] = None
        return self._collects

    def close(self) -> None:
        """Give the hooks back to the script."""
        for parameter in self._taken:
            for hooks in (_tensor_hooks(parameter), _post_hooks(parameter)):
                for key, hook in hooks.items():
                    if isinstance(hook, _Kept):
                        hooks[key] = hook.original
        self._taken.clear()


class OwnHook(partial[None]):
    """A hook of the training itself, which collects gradients."""


class _Kept:
    """A hook that waits for the sum. Outside of run.backward() it may only read."""

    def __init__(self, hooks: GradientHooks, parameter: nn.Parameter, name: str, original: Hook) -> None:
        self._hooks, self._parameter, self._name, self.original = hooks, parameter, name, original

    def _changed(self) -> TrainingError:
        return TrainingError(
            f"a hook of parameter {self._name} changes its gradient in loss.backward(), where it is that of this "
            "worker alone; call run.backward(loss), after which the hook sees the global gradient"
        )


class _OfTensor(_Kept):
    """Of `register_hook`."""

    def __call__(self, gradient: torch.Tensor) -> None:
        if self._hooks.keeps_back(self._parameter):
            return
        version = gradient._version
        found = self.original(gradient)
        if (found is not None and found is not gradient) or gradient._version != version:
            raise self._changed()


class _OfParameter(_Kept):
    """Of `register_post_accumulate_grad_hook`."""

    def __call__(self, parameter: nn.Parameter) -> None:
        if self._hooks.keeps_back(parameter):
            return
        gradient, before = parameter.grad, _versions(parameter)
        self.original(parameter)
        if parameter.grad is not gradient or _versions(parameter) != before:
            raise self._changed()


def _tensor_hooks(parameter: nn.Parameter) -> dict[int, Hook]:
    return getattr(parameter, "_backward_hooks", None) or {}


def _post_hooks(parameter: nn.Parameter) -> dict[int, Hook]:
    return getattr(parameter, "_post_accumulate_grad_hooks", None) or {}


def _versions(parameter: nn.Parameter) -> tuple[int, int]:
    return parameter._version, -1 if parameter.grad is None else parameter.grad._version
