"""torch.compile with batch sizes that change.

A graph that is compiled for one size is compiled anew for the next. So the first dimension of every batch is marked as
one that changes, and one graph serves all sizes. Marks are lost where the script copies a batch to a GPU; torch then
compiles twice, for the first size and for all others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from worker_hooks.torch import lazy_dynamo


def mark_sizes(batch: Any, samples: int) -> None:
    """Tell torch.compile that the number of `samples` in this batch is not always the same."""
    if (dynamo := lazy_dynamo.loaded()) is None:
        return  # nothing is compiled
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.ndim and len(leaf) == samples:
            dynamo.maybe_mark_dynamic(leaf, 0)


def is_used() -> bool:
    """Whether anything in this process was given to torch.compile."""
    dynamo = lazy_dynamo.loaded()
    if dynamo is None:
        return False
    backends = getattr(dynamo.eval_frame, "cached_backends", {0: dynamo})
    return any(backend is not None for backend in backends.values())  # none: of functions that are not to be compiled


class CompiledGraphs:
    """Counts the graphs that torch.compile makes in this process."""

    def __init__(self) -> None:
        self._before = _made()
        self._first: int | None = None  # so many by the end of the first iteration

    def iteration_complete(self) -> None:
        if self._first is None:
            self._first = self.made

    @property
    def made(self) -> int:
        """Since the training began."""
        return max(_made() - self._before, 0)

    @property
    def made_later(self) -> int:
        """After the first iteration: other sizes, other shapes, evaluations."""
        return 0 if self._first is None else self.made - self._first


def _made() -> int:
    dynamo = lazy_dynamo.loaded()
    return 0 if dynamo is None else int(dynamo.utils.counters["stats"]["unique_graphs"])
