"""The complete state of Gluon models in training: as a file, for the other workers and for checkpoints, and array by
array, for a worker that enters.

The file is a NumPy archive: arrays under the names of the model, and the rest as JSON. It cannot contain code.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import mxnet as mx
import numpy as np
from mxnet.gluon import Block, Parameter, Trainer
from numpy.typing import NDArray

from dynamix_ps.comm.state_stream import NO_SUM, read_piece, write_piece
from dynamix_ps.errors import CheckpointError
from worker_hooks.adapter import ModelState
from worker_hooks.saved.checkpoint import FORMAT, Position, check_format
from worker_hooks.saved.saved_fields import read_list, read_number, read_table, read_whole, wrong

_REST = "rest.json"
_ARRAY = "array in this archive"  # key of a dict that stands for an array


class MXNetState(ModelState):
    """Parameters, running means and the like, and states of the optimizer, bit for bit."""

    def __init__(self, net: Block, trainer: Trainer) -> None:
        self._nets, self._trainers = [net], [trainer]

    def write(self, position: Position, out: BinaryIO) -> None:
        np.savez(out, **self._gathered(position))

    def send(self, position: Position, out: BinaryIO) -> None:
        arrays = self._gathered(position)
        write_piece(out, NO_SUM, json.dumps(list(arrays)).encode())
        for array in arrays.values():
            packed = io.BytesIO()
            np.save(packed, array, allow_pickle=False)
            write_piece(out, NO_SUM, packed.getbuffer())

    def _gathered(self, position: Position) -> dict[str, NDArray[Any]]:
        nets, trainers = self._nets, self._trainers
        arrays: dict[str, NDArray[Any]] = {}
        for number, net in enumerate(nets):
            for name, parameter in named_parameters(net).items():
                arrays[f"models/{number}/{name}"] = parameter.data().asnumpy()
        for number, trainer in enumerate(trainers):
            for index, name in _trained(nets, trainer).items():
                for leaf_number, leaf in enumerate(_leaves(trainer._updaters[0].states.get(index))):
                    arrays[f"optimizers/{number}/{name}/{leaf_number}"] = leaf.asnumpy()
        rest = {
            "format": FORMAT,
            "position": _plain(position.pack(), "position", arrays),
            "optimizers": [
                {
                    "kind": type(trainer._optimizer).__name__,
                    "numbers": numbers(trainer),
                    "updates": {
                        name: trainer._optimizer._index_update_count.get(index)
                        for index, name in _trained(nets, trainer).items()
                    },
                }
                for trainer in trainers
            ],
        }
        arrays[_REST] = np.frombuffer(json.dumps(rest).encode(), dtype=np.uint8)
        return arrays

    def restore(self, packed: BinaryIO) -> Position:
        """Raises CheckpointError, which names the first field that is damaged or not of these models.

        Nothing is changed then.
        """
        try:
            with np.load(packed, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            rest = _rest_of(arrays)
        except Exception as error:  # zip, NumPy and JSON raise many types for damaged bytes
            raise CheckpointError(f"not a complete checkpoint of MXNet ({type(error).__name__}: {error})") from error
        return self._put(arrays, rest)

    def receive(self, state: BinaryIO) -> Position:
        names = json.loads(read_piece(state))
        arrays = {name: np.load(io.BytesIO(read_piece(state)), allow_pickle=False) for name in names}
        return self._put(arrays, _rest_of(arrays))

    def _put(self, arrays: dict[str, NDArray[Any]], rest: Any) -> Position:
        nets, trainers = self._nets, self._trainers
        check_format(rest.get("format") if isinstance(rest, dict) else None)
        read_table(rest, "checkpoint", ("format", "position", "optimizers"))
        position = Position.unpack(rest["position"])
        wanted = {
            f"models/{number}/{name}": parameter
            for number, net in enumerate(nets)
            for name, parameter in named_parameters(net).items()
        }
        _check_models(arrays, wanted)
        tables = read_list(rest["optimizers"], "optimizers", len(trainers))
        states = [
            _optimizer_states(arrays, tables[number], nets, trainer, f"optimizers/{number}")
            for number, trainer in enumerate(trainers)
        ]
        for name, parameter in wanted.items():
            parameter.set_data(mx.nd.array(arrays[name], dtype=arrays[name].dtype))
        for trainer, table, found in zip(trainers, tables, states, strict=True):
            updater = trainer._updaters[0]
            updater.states.clear()
            for index, (name, state) in found.items():
                updater.states[index], updater.states_synced[index] = state, True
                trainer._optimizer._index_update_count[index] = table["updates"][name]
            vars(trainer._optimizer).update(table["numbers"])
        return position

    def storable(self, state: Any, where: str) -> Any:
        """The same. `where`: its name in an error.

        Raises CheckpointError unless a checkpoint can hold it: numbers, text, arrays, and lists and dicts of them.
        """
        json.dumps(_plain(state, where, {}))
        return state

    def hyperparameters(self) -> dict[str, int | float]:
        return numbers(self._trainers[0])

    def set_hyperparameters(self, saved: Any) -> None:
        vars(self._trainers[0]._optimizer).update(saved)


def _rest_of(arrays: dict[str, NDArray[Any]]) -> Any:
    """What is no array of the model. Takes it out of `arrays`."""
    return json.loads(arrays.pop(_REST).tobytes(), object_hook=lambda table: _array_or_table(table, arrays))


def _plain(value: Any, where: str, arrays: dict[str, NDArray[Any]]) -> Any:
    """`value` as JSON can hold it, and read back equal; arrays go to `arrays`. Raises CheckpointError."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic):
        return _plain(value.item(), where, arrays)
    if type(value) is list:
        return [_plain(one, f"{where}[{number}]", arrays) for number, one in enumerate(value)]
    if type(value) is dict and all(type(name) is str for name in value):
        return {name: _plain(one, f"{where}.{name}", arrays) for name, one in value.items()}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        arrays[where] = value
        return {_ARRAY: where}
    raise wrong(where, value, "a number, text, NumPy array, list, or dict with text as keys")


def _array_or_table(table: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Any:
    return arrays.pop(table[_ARRAY]) if _ARRAY in table else table


def _check_models(arrays: dict[str, NDArray[Any]], wanted: dict[str, Parameter]) -> None:
    """Same names, shapes and types."""
    saved = [name for name in arrays if name.startswith("models/")]
    for name in [*wanted, *saved]:
        if name not in arrays:
            raise CheckpointError(f"not of this model: the checkpoint has no {name!r}")
        if name not in wanted:
            raise CheckpointError(f"not of this model: the checkpoint has {name!r}, which the model lacks")
        got = f"{arrays[name].dtype} of shape {arrays[name].shape}"
        expected = f"{np.dtype(wanted[name].dtype)} of shape {tuple(wanted[name].shape)}"
        if got != expected:
            raise CheckpointError(f"not of this model: {name}: got {got}, expected {expected}")


def _optimizer_states(
    arrays: dict[str, NDArray[Any]], table: object, nets: Sequence[Block], trainer: Trainer, where: str
) -> dict[int, tuple[str, Any]]:
    """(name, state) of every parameter that the optimizer has updated, by its index in the trainer."""
    found = read_table(table, where, ("kind", "numbers", "updates"))
    optimizer = trainer._optimizer
    kind = type(optimizer).__name__
    if found["kind"] != kind:
        raise CheckpointError(f"not of this optimizer: {where}.kind: got {found['kind']!r}, expected {kind!r}")
    for name, value in read_table(found["numbers"], f"{where}.numbers", tuple(numbers(trainer))).items():
        read_number(value, f"{where}.numbers.{name}")
    names = _trained(nets, trainer)
    updates = read_table(found["updates"], f"{where}.updates", tuple(names.values()))
    states = {}
    for index, name in names.items():
        if updates[name] is None:
            continue
        read_whole(updates[name], f"{where}.updates.{name}")
        state = optimizer.create_state_multi_precision(index, trainer._params[index].data())
        for number, leaf in enumerate(_leaves(state)):
            saved = arrays.get(f"{where}/{name}/{number}")
            if saved is None or saved.shape != leaf.shape:
                raise CheckpointError(f"not of this optimizer: {where} has no such state for {name}")
            leaf[:] = saved
        states[index] = name, state
    return states


def numbers(trainer: Trainer) -> dict[str, int | float]:
    """The optimizer's settings that are numbers, such as its learning rate."""
    plain = {
        name: value.item() if isinstance(value, np.number) else value
        for name, value in vars(trainer._optimizer).items()
    }
    return {name: value for name, value in plain.items() if type(value) in (int, float)}


def named_parameters(net: Block) -> dict[str, Parameter]:
    """Parameters by their place in the model. Gluon's own names count all blocks of a process, so they differ."""
    parameters: dict[str, Parameter] = net._collect_params_with_prefix()
    return parameters


def _trained(nets: Sequence[Block], trainer: Trainer) -> dict[int, str]:
    """Names of the trainer's parameters, by their index in the trainer."""
    names = {
        id(parameter): f"{number}/{name}"
        for number, net in enumerate(nets)
        for name, parameter in named_parameters(net).items()
    }
    return {index: names.get(id(parameter), parameter.name) for index, parameter in enumerate(trainer._params)}


def _leaves(state: Any) -> Iterator[Any]:
    """The arrays of an optimizer's state: none, one, or several, nested."""
    if isinstance(state, mx.nd.NDArray):
        yield state
    elif state is not None:
        for part in state:
            yield from _leaves(part)
