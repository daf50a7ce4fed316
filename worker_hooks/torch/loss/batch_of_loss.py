"""Which batch a loss was computed from, as far as its graph has kept tensors of it: inputs or targets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree

MOST_NODES = 20_000  # of a graph that are looked at
FEWEST_VALUES = 4  # fewer may be equal by chance


def batch_of(loss: Any, batches: Sequence[Any]) -> int | None:
    """The number of the one batch that `loss` was computed from; none: the graph does not show it.

    A kept tensor shares its memory with one of the batch, or is a copy of it, such as on another device.
    """
    if not isinstance(loss, torch.Tensor):
        return None
    tensors = [[one for one in pytree.tree_leaves(batch) if _has_values(one)] for batch in batches]
    kept: list[torch.Tensor] = []

    def found(one: torch.Tensor, is_same: Callable[[torch.Tensor, torch.Tensor], bool]) -> int | None:
        numbers = [number for number, own in enumerate(tensors) if any(is_same(one, other) for other in own)]
        return numbers[0] if len(numbers) == 1 else None

    for one in _kept(loss):
        if (number := found(one, _shares_memory)) is not None:
            return number
        kept.append(one)
    return next((number for one in kept if (number := found(one, _is_copy)) is not None), None)


def _kept(loss: torch.Tensor) -> Iterator[torch.Tensor]:
    """Tensors that the backward pass of `loss` needs, those of the loss function first."""
    waiting, seen = deque([loss.grad_fn]), set[Any]()
    while waiting and len(seen) < MOST_NODES:
        node = waiting.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        for name in _names_of_kept(type(node)):
            try:
                value = getattr(node, name)
            except RuntimeError:  # freed by another backward pass, or changed since
                continue
            yield from filter(_has_values, value if isinstance(value, tuple | list) else (value,))
        waiting.extend(before for before, _ in node.next_functions)


@cache
def _names_of_kept(kind: type) -> tuple[str, ...]:
    """Attributes of this kind of node that hold kept tensors."""
    return tuple(name for name in dir(kind) if name.startswith("_saved_") or name == "saved_tensors")


def _has_values(one: object) -> bool:
    return isinstance(one, torch.Tensor) and one.layout == torch.strided and one.numel() > 0


def _shares_memory(kept: torch.Tensor, other: torch.Tensor) -> bool:
    return kept.device == other.device and kept.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _is_copy(kept: torch.Tensor, other: torch.Tensor) -> bool:
    if kept.numel() != other.numel() or kept.numel() < FEWEST_VALUES:
        return False
    with torch.no_grad():
        return torch.equal(kept.detach().flatten(), other.detach().to(kept.device, kept.dtype).flatten())
