"""The complete state of torch models in training: as a file, for checkpoints and a common start, and as a stream
(tensors_apart.py), for a worker that enters.

A file holds what can be read back without running code: numbers, text, tensors, lists and dicts.
"""

from __future__ import annotations

import copy
import io
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import torch

from dynamix_ps.errors import CheckpointError
from worker_hooks.adapter import ModelState
from worker_hooks.saved.checkpoint import FORMAT, Position, check_format
from worker_hooks.saved.saved_fields import read_list, read_table, wrong
from worker_hooks.torch.parameters import parameters_of_no_model
from worker_hooks.torch.state import tensors_apart

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_TABLES = (dict, OrderedDict, Counter)
_LISTS = (list, tuple, set)


class TorchState(ModelState):
    """Parameters, buffers, parameters of optimizers alone, and states of optimizers, bit for bit."""

    def __init__(self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._models, self._optimizers = models, optimizers

    def write(self, position: Position, out: BinaryIO) -> None:
        """Raises CheckpointError, which names the key, for a state that could not be read back."""
        torch.save(self._gathered(position), out)

    def send(self, position: Position, out: BinaryIO) -> None:
        tensors_apart.write(self._gathered(position), out)

    def _gathered(self, position: Position) -> dict[str, Any]:
        others = parameters_of_no_model(self._models, self._optimizers)
        return {
            "format": FORMAT,
            "models": [
                storable(model.state_dict(), f"the state of model {number}")
                for number, model in enumerate(self._models)
            ],
            "others": {name: one.detach() for name, one in others.items()},
            "optimizers": [
                {"kind": type(one).__name__, "state": storable(one.state_dict(), f"the state of optimizer {number}")}
                for number, one in enumerate(self._optimizers)
            ],
            "position": position.pack(),
        }

    def restore(self, packed: BinaryIO) -> Position:
        """Raises CheckpointError, which names the first field that is damaged or not of these models.

        Nothing is changed then.
        """
        try:
            state = torch.load(packed, map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load raises many types for damaged bytes
            raise CheckpointError(f"not a complete checkpoint of torch ({type(error).__name__}: {error})") from error
        return self._put(state)

    def receive(self, state: BinaryIO) -> Position:
        return self._put(tensors_apart.read(state))

    def _put(self, state: Any) -> Position:
        models, optimizers = self._models, self._optimizers
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

    def storable(self, state: Any, where: str) -> Any:
        return storable(state, where)

    def hyperparameters(self) -> list[list[dict[str, Any]]]:
        """The settings of every parameter group."""
        return [
            [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
            for optimizer in self._optimizers
        ]

    def set_hyperparameters(self, saved: list[list[dict[str, Any]]]) -> None:
        for optimizer, groups in zip(self._optimizers, saved, strict=True):
            for group, values in zip(optimizer.param_groups, groups, strict=True):
                group.update(values)


def storable(value: Any, where: str) -> Any:
    """`value` with Python's numbers in place of numpy's. `where`: its name in an error.

    Raises CheckpointError, which names the key, for a value that could not be read back.
    """
    kind = type(value)
    if kind in _PLAIN or isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.generic):
        return storable(value.item(), where)
    if kind in _TABLES:
        changed = copy.copy(value)  # with what else a dict has, such as the versions of a model's modules
        changed.clear()
        changed.update({storable(key, where): storable(one, f"{where}[{key!r}]") for key, one in value.items()})
        return changed
    if kind in _LISTS:
        return kind(storable(one, f"{where}[{number}]") for number, one in enumerate(value))
    _check_read_back(value, where)
    return value


def _check_read_back(value: Any, where: str) -> None:
    """For types that the script has allowed by torch.serialization.add_safe_globals()."""
    packed = io.BytesIO()
    try:
        torch.save(value, packed)
        packed.seek(0)
        torch.load(packed, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever pickle raises for a value of another kind
        raise CheckpointError(
            f"{where} is of type {type(value).__qualname__}, which a checkpoint cannot hold: give it as numbers, "
            "text, tensors, or lists and dicts of them"
        ) from error


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
