"""A quick look at models and optimizers, twice in every iteration: has the script changed what is trained?"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import torch
from torch import nn


class Glance:
    """What a quick look at models and optimizers sees: which objects are where, which are frozen, where values lie.

    Whatever changes a parameter's shape, type or device gives it another place in memory.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        modules = [module for model in models for module in model.modules()]
        self._tables: list[Mapping[str, object]] = [m._parameters for m in modules if m._parameters]
        self._tables += [m._modules for m in modules if m._modules]
        self._optimizers = optimizers
        self._seen = self._objects()
        self._parameters = list({one for one in self._seen if isinstance(one, torch.Tensor)})
        self._places = self._state()

    def _objects(self) -> list[object]:
        """Parameters and modules in their tables, then what the optimizers step; None ends a table or a group."""
        found: list[object] = []
        for table in self._tables:
            found += table.values()
            found.append(None)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                found += group["params"]
                found.append(None)
        return found

    def _state(self) -> list[int]:
        return [p.data_ptr() if p.requires_grad else ~p.data_ptr() for p in self._parameters]

    def same(self) -> bool:
        """Whether another look sees the same."""
        objects = self._objects()
        return (
            len(objects) == len(self._seen)
            and all(map(operator.is_, objects, self._seen))
            and self._state() == self._places
        )
