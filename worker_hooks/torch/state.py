"""The complete state of torch models in training: as a file, for checkpoints and a common start, and as a stream
(tensors_apart.py), for a worker that enters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import torch

from dynamix_ps.errors import CheckpointError
from worker_hooks.checkpoint import FORMAT, Position, check_format
from worker_hooks.saved_fields import read_list, read_table, wrong
from worker_hooks.torch import tensors_apart
from worker_hooks.torch.parameters import parameters_of_no_model
from worker_hooks.torch.storable import storable


def write(
    models: Sequence[torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    position: Position,
    out: BinaryIO,
) -> None:
    """Parameters, buffers, parameters of optimizers alone, optimizer states and `position`, bit for bit.

    Raises CheckpointError, which names the key, for a state that could not be read back.
    """
    torch.save(_gathered(models, optimizers, position), out)


def send(
    models: Sequence[torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    position: Position,
    out: BinaryIO,
) -> None:
    """The same for another worker."""
    tensors_apart.write(_gathered(models, optimizers, position), out)


def _gathered(
    models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer], position: Position
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "models": [storable(model.state_dict(), f"the state of model {number}") for number, model in enumerate(models)],
        "others": {name: one.detach() for name, one in parameters_of_no_model(models, optimizers).items()},
        "optimizers": [
            {"kind": type(one).__name__, "state": storable(one.state_dict(), f"the state of optimizer {number}")}
            for number, one in enumerate(optimizers)
        ],
        "position": position.pack(),
    }


def restore(
    packed: BinaryIO, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> Position:
    """Put a state that `write` wrote into models and optimizers; returns its position.

    Raises CheckpointError, which names the first field that is damaged or not of these models. Nothing is changed then.
    """
    try:
        state = torch.load(packed, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many types for damaged bytes
        raise CheckpointError(f"not a complete checkpoint of torch ({type(error).__name__}: {error})") from error
    return _put(state, models, optimizers)


def receive(
    stream: BinaryIO, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> Position:
    """Put a state that `send` wrote on another worker into models and optimizers; returns its position.

    Raises PeerLostError if the stream breaks off, and CheckpointError as `restore` does. Nothing is changed then.
    """
    return _put(tensors_apart.read(stream), models, optimizers)


def _put(state: Any, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> Position:
    check_format(state.get("format") if isinstance(state, dict) else None)
    read_table(state, "checkpoint", ("format", "models", "others", "optimizers", "position"))
    position = Position.unpack(state["position"])
    model_states = read_list(state["models"], "models", len(models))
    optimizer_states = read_list(state["optimizers"], "optimizers", len(optimizers))
    for number, model in enumerate(models):
        _check_tensors(model_states[number], model.state_dict(), f"models[{number}]")
    others = parameters_of_no_model(models, optimizers)
    _check_tensors(state["others"], others, "others")
    for number, optimizer in enumerate(optimizers):
        _check_optimizer(optimizer_states[number], optimizer, f"optimizers[{number}]")
    try:
        for model, saved in zip(models, model_states, strict=True):
            model.load_state_dict(saved)
        with torch.no_grad():
            for name, parameter in others.items():
                parameter.copy_(state["others"][name])
        for optimizer, saved in zip(optimizers, optimizer_states, strict=True):
            optimizer.load_state_dict(saved["state"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"not of this model and optimizer: {error}") from error
    return position


def hyperparameters(optimizers: Sequence[torch.optim.Optimizer]) -> list[list[dict[str, Any]]]:
    """The settings of every parameter group, which schedulers change."""
    return [
        [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
        for optimizer in optimizers
    ]


def set_hyperparameters(optimizers: Sequence[torch.optim.Optimizer], saved: list[list[dict[str, Any]]]) -> None:
    """Put back what `hyperparameters` returned."""
    for optimizer, groups in zip(optimizers, saved, strict=True):
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.update(values)


def _check_tensors(saved: object, wanted: Mapping[str, Any], where: str) -> None:
    """Same names, shapes and types."""
    if not isinstance(saved, Mapping):
        raise wrong(where, saved, "a dict of tensors")
    for name in [*wanted, *saved]:
        if name not in saved:
            raise CheckpointError(f"not of this model: {where} has no {name!r}")
        if name not in wanted:
            raise CheckpointError(f"not of this model: {where} has {name!r}, which the model lacks")
        got, expected = _kind(saved[name]), _kind(wanted[name])
        if got != expected:
            raise CheckpointError(f"not of this model: {where}.{name}: got {got}, expected {expected}")


def _check_optimizer(saved: object, optimizer: torch.optim.Optimizer, where: str) -> None:
    """Same class, parameter groups of the same sizes, and every setting of the optimizer in each of them."""
    found = read_table(saved, where, ("kind", "state"))
    kind = type(optimizer).__name__
    if found["kind"] != kind:
        raise CheckpointError(f"not of this optimizer: {where}.kind: got {found['kind']!r}, expected {kind!r}")
    state = read_table(found["state"], f"{where}.state", ("state", "param_groups"))
    groups = read_list(state["param_groups"], f"{where}.param_groups", len(optimizer.param_groups))
    parameters = set()
    for number, (group, wanted) in enumerate(zip(groups, optimizer.param_groups, strict=True)):
        place = f"{where}.param_groups[{number}]"
        if not isinstance(group, dict):
            raise wrong(place, group, "a dict of settings")
        for name in ("params", *optimizer.defaults):
            if name not in group:
                raise CheckpointError(f"not of this optimizer: {place} has no {name!r}")
        parameters.update(read_list(group["params"], f"{place}.params", len(wanted["params"])))
    if not isinstance(state["state"], dict) or not parameters.issuperset(state["state"]):
        raise CheckpointError(f"not of this optimizer: {where}.state has values of parameters that are in no group")


def _kind(value: Any) -> str:
    """Type and shape of a tensor, in words; the type of anything else."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return type(value).__name__
