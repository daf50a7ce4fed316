"""A quick look at models and optimizers, twice in every iteration: has the script changed what is trained?"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn


class Glance:
    """What a quick look at models and optimizers sees: which objects are where, which are frozen, where values lie.

    Whatever changes a parameter's shape, type or device gives it another place in memory.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        modules = [module for model in models for module in model.modules()]
        tables: list[Mapping[str, object]] = [m._parameters for m in modules if m._parameters]
        tables += [m._modules for m in modules if m._modules]
        self._tables = [(table, list(table.values())) for table in tables]
        self._optimizers = optimizers
        self._groups = list(map(list, self._stepped()))
        parameters = {p for module in modules for p in module._parameters.values() if p is not None}
        self._parameters = list(parameters.union(*self._groups))
        self._places = self._state()

    def _stepped(self) -> list[list[nn.Parameter]]:
        """The lists themselves, which a script may change in place."""
        return [group["params"] for optimizer in self._optimizers for group in optimizer.param_groups]

    def _state(self) -> list[int]:
        return [p.data_ptr() if p.requires_grad else ~p.data_ptr() for p in self._parameters]

    def same(self) -> bool:
        """Whether another look sees the same."""
        groups = self._stepped()
        return (
            len(groups) == len(self._groups)
            and all(map(_same_objects, groups, self._groups))
            and all(_same_objects(table.values(), values) for table, values in self._tables)
            and self._state() == self._places
        )


def _same_objects(one: Collection[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(operator.is_, one, other))
