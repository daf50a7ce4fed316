"""The complete state of a Gluon model in training, as bytes: for the other workers and for checkpoints.

A NumPy archive: arrays under the names of the model, and the rest as JSON. It cannot contain code.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon import Block, Parameter, Trainer

from dynamix_ps.errors import CheckpointError
from worker_hooks.checkpoint import FORMAT, Position, check_format

_REST = "rest.json"


def pack(net: Block, trainer: Trainer, position: Position) -> bytes:
    """Parameters, running means and the like, optimizer state and `position`, bit for bit."""
    parameters = named_parameters(net)
    arrays = {f"model/{name}": parameter.data().asnumpy() for name, parameter in parameters.items()}
    optimizer, states = trainer._optimizer, trainer._updaters[0].states
    for index, name in _trained(net, trainer).items():
        for number, leaf in enumerate(_leaves(states.get(index))):
            arrays[f"optimizer/{name}/{number}"] = leaf.asnumpy()
    rest = {
        "format": FORMAT,
        "position": position.pack(),
        "numbers": {name: value for name, value in vars(optimizer).items() if type(value) in (int, float)},
        "updates": {name: optimizer._index_update_count.get(i) for i, name in _trained(net, trainer).items()},
    }
    arrays[_REST] = np.frombuffer(json.dumps(rest).encode(), dtype=np.uint8)
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    return packed.getvalue()


def restore(packed: bytes, net: Block, trainer: Trainer) -> Position:
    """Put a packed state into model and trainer; returns its position.

    Raises CheckpointError if it is damaged, or not of this model.
    """
    try:
        with np.load(io.BytesIO(packed), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        rest = json.loads(arrays.pop(_REST).tobytes())
    except Exception as error:  # zip, NumPy and JSON raise many types for damaged bytes
        raise CheckpointError(f"not a complete checkpoint of MXNet ({type(error).__name__}: {error})") from error
    check_format(rest.get("format"))
    wanted = {f"model/{name}": parameter for name, parameter in named_parameters(net).items()}
    saved = {name: array for name, array in arrays.items() if name.startswith("model/")}
    if {name: array.shape for name, array in saved.items()} != {name: one.shape for name, one in wanted.items()}:
        raise CheckpointError("not of this model: its parameters have other names or shapes")
    for name, parameter in wanted.items():
        parameter.set_data(mx.nd.array(saved[name], dtype=saved[name].dtype))
    _restore_optimizer(arrays, rest, net, trainer)
    return Position.unpack(rest["position"])


def _restore_optimizer(arrays: dict[str, Any], rest: dict[str, Any], net: Block, trainer: Trainer) -> None:
    optimizer, updater = trainer._optimizer, trainer._updaters[0]
    updater.states.clear()
    for index, name in _trained(net, trainer).items():
        if rest["updates"].get(name) is None:
            continue
        state = optimizer.create_state_multi_precision(index, trainer._params[index].data())
        for number, leaf in enumerate(_leaves(state)):
            saved = arrays.get(f"optimizer/{name}/{number}")
            if saved is None or saved.shape != leaf.shape:
                raise CheckpointError(f"not of this optimizer: it has no such state for {name}")
            leaf[:] = saved
        updater.states[index], updater.states_synced[index] = state, True
        optimizer._index_update_count[index] = rest["updates"][name]
    vars(optimizer).update(rest["numbers"])


def named_parameters(net: Block) -> dict[str, Parameter]:
    """Parameters by their place in the model. Gluon's own names count all blocks of a process, so they differ."""
    parameters: dict[str, Parameter] = net._collect_params_with_prefix()
    return parameters


def _trained(net: Block, trainer: Trainer) -> dict[int, str]:
    """Names of the trainer's parameters, by their index in the trainer."""
    names = {id(parameter): name for name, parameter in named_parameters(net).items()}
    return {index: names.get(id(parameter), parameter.name) for index, parameter in enumerate(trainer._params)}


def _leaves(state: Any) -> Iterator[Any]:
    """The arrays of an optimizer's state: none, one, or several, nested."""
    if isinstance(state, mx.nd.NDArray):
        yield state
    elif state is not None:
        for part in state:
            yield from _leaves(part)
