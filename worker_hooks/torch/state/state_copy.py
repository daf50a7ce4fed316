"""A copy of the state of torch models in training, in the memory of the host."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from worker_hooks.torch.parameters import parameters_of_no_model


class _Saved(NamedTuple):
    """A tensor, and where it belongs."""

    values: torch.Tensor
    device: torch.device


class Averages(Protocol):
    """Averages of the weights."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def copy_state(
    models: Sequence[torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    averages: Sequence[Averages] = (),
) -> Callable[[], None]:
    """Copies parameters, buffers, parameters of optimizers alone, states of optimizers, and averages.

    Returns what puts the copy back, as often as wanted. The parameter groups of the optimizers stay as they are then,
    with the learning rates in them.
    """
    parts = [_saved_model(model) for model in models]
    others = _saved(parameters_of_no_model(models, optimizers))
    states = [_saved(optimizer.state) for optimizer in optimizers]
    means = [_saved(one.state_dict()) for one in averages]

    def put_back() -> None:
        for model, part in zip(models, parts, strict=True):
            model.load_state_dict(part)
        with torch.no_grad():
            for name, parameter in parameters_of_no_model(models, optimizers).items():
                parameter.copy_(others[name].values)
        for optimizer, state in zip(optimizers, states, strict=True):
            optimizer.state.clear()
            optimizer.state.update(_restored(state))
        for one, mean in zip(averages, means, strict=True):
            one.load_state_dict(_restored(mean))

    return put_back


def _saved_model(model: torch.nn.Module) -> dict[str, Any]:
    """Its state with copies of all tensors; loading copies them once more. Versions of its modules stay with it."""
    state: dict[str, Any] = model.state_dict()
    for name, value in state.items():
        state[name] = value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else copy.deepcopy(value)
    return state


def _saved(value: Any) -> Any:
    """The same with all tensors saved; the keys of dicts stay."""
    if isinstance(value, torch.Tensor):
        return _Saved(value.detach().to("cpu", copy=True), value.device)
    if isinstance(value, Mapping):
        return {key: _saved(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_saved(one) for one in value)
    return copy.deepcopy(value)


def _restored(value: Any) -> Any:
    """What was saved, once more: nobody else has these tensors."""
    if isinstance(value, _Saved):
        return value.values.to(value.device, copy=True)
    if isinstance(value, dict):
        return {key: _restored(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_restored(one) for one in value)
    return copy.deepcopy(value)
