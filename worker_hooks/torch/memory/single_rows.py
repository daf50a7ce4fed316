"""Whether a model computes each row of a batch by itself, and keeps nothing from one call to the next.

Only then its outputs for the parts of a batch are those for the batch at once. It is tried once: outputs for the first
and the last part are compared with those for all rows. Dropout is left out of it, as its random numbers come in another
order for parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from worker_hooks.memory.divided_call import SAME
from worker_hooks.torch.loss.graph_nodes import nodes_below
from worker_hooks.torch.memory.divided_batch import SAME_IN_HALVES, TorchDividedBatch
from worker_hooks.torch.memory.repeatable import ForwardState
from worker_hooks.torch.memory.running_statistics import batch_norms


def cannot_be_divided(model: nn.Module) -> str:
    """What a look at a model shows against parts; empty: nothing."""
    if any(norm.training for norm in batch_norms(model)):
        return "batch norm in training compares the rows of the batch"
    if not all(parameter.is_leaf for parameter in model.parameters()):
        return "the parameters of its model are computed, as by torch.func.functional_call"
    return ""


def joins_rows(batch: TorchDividedBatch, parts: Sequence[tuple[int, int]]) -> str:
    """What a try with these parts shows against them; empty: nothing. They are of the first rows of a batch.

    It leaves no trace.
    """
    model, name = batch.model, type(batch.model).__name__
    with ForwardState(model).restored(), _without_dropout(model):
        kept = _Kept(model)
        try:
            with torch.no_grad():
                whole = batch.outputs_of(0, parts[-1][1])
                if kept.has_changed():
                    return f"{name} keeps a state of its own that each call changes, or draws random numbers"
                for begin, end in (parts[0], parts[-1]):
                    if not all(map(partial(_is_part, begin, end), batch.outputs_of(begin, end), whole)):
                        return f"{name} computes something else for a part of the batch than for its rows in all of it"
            if _has_earlier_nodes(batch, parts[0]):
                return f"{name} computes with tensors that have a gradient and are neither parameters nor its arguments"
            batch.try_out(parts[0][1])
        except Exception as error:
            return f"{name} does not compute a part of the batch: {error}"
        finally:
            kept.put_back()
    return ""


class _Kept:
    """What a model keeps, and torch's random numbers."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = [(module, dict(vars(module))) for module in model.modules()]
        self._buffers = [(buffer, buffer._version) for buffer in model.buffers()]
        self._names = [name for name, _ in model.named_buffers()]
        self._model, self._random = model, self._random_state()

    @staticmethod
    def _random_state() -> list[torch.Tensor]:
        on_cuda: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if on_cuda else [])]

    def has_changed(self) -> bool:
        if any(buffer._version != version for buffer, version in self._buffers):
            return True
        if [name for name, _ in self._model.named_buffers()] != self._names or any(map(_differs, self._modules)):
            return True
        return not all(map(torch.equal, self._random, self._random_state()))

    def put_back(self) -> None:
        """The attributes of its modules; buffers and random numbers are others' to restore."""
        for module, attributes in filter(_differs, self._modules):
            vars(module).clear()
            vars(module).update(attributes)


def _differs(module: tuple[nn.Module, dict[str, Any]]) -> bool:
    now, before = vars(module[0]), module[1]
    return now.keys() != before.keys() or any(now[name] is not value for name, value in before.items())


@contextlib.contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """The layers of torch that have dropout compute without it."""
    changed: list[tuple[nn.Module, str, Any]] = []
    for module in model.modules():
        if isinstance(module, _DropoutNd) and module.training:
            changed.append((module, "training", False))
        elif isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout:
            changed.append((module, "dropout", 0.0))
    before = [(module, name, getattr(module, name)) for module, name, _ in changed]
    for module, name, value in changed:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _has_earlier_nodes(batch: TorchDividedBatch, part: tuple[int, int]) -> bool:
    """Whether the graph of a part goes on to one from before the call, which parts would share."""
    first = torch.ones((), requires_grad=True).neg().grad_fn
    assert first is not None
    tensors = (one for one in batch.outputs_of(*part) if isinstance(one, torch.Tensor) and one.grad_fn is not None)
    nodes = (node for one in tensors for node in nodes_below(one.grad_fn, None))
    return any(node._sequence_nr() < first._sequence_nr() for node in nodes)


def _is_part(begin: int, end: int, one: Any, of_all: Any) -> bool:
    """Whether an output is that of these rows."""
    if not isinstance(one, torch.Tensor):
        return bool(one == of_all)
    expected = of_all[begin:end]
    if one.shape != expected.shape or not (one.is_floating_point() or one.is_complex()):
        return bool(one.shape == expected.shape)
    largest = float(of_all.abs().nan_to_num(0.0, 0.0).max())
    exact = (SAME_IN_HALVES if one.dtype.itemsize < 4 else SAME) * largest
    return bool(torch.allclose(one, expected, rtol=0.0, atol=exact, equal_nan=True))
