"""Quick looks at models and optimizers in every iteration: has the script changed what is trained, or how?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_, methodcaller
from typing import Any

import torch
from torch import nn

_VALUES, _PLACE, _NEEDS_GRADIENT = methodcaller("values"), methodcaller("data_ptr"), attrgetter("requires_grad")
_COMPARED = ("lr", "momentum", "betas", "weight_decay")  # keys of a group of parameters
_FIXED = {float, int, bool, type(None)}  # types of values that change only where others take their place


class Glance:
    """What a quick look at models and optimizers sees: which objects are where, which are frozen, where values lie.

    Whatever changes a parameter's shape, type or device gives it another place in memory. The loops are those of
    functions in C, which take a tenth of the time.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        modules = [module for model in models for module in model.modules()]
        self._tables: list[Mapping[str, Any]] = [m._parameters for m in modules if m._parameters]
        self._tables += [m._modules for m in modules if m._modules]
        self._optimizers = optimizers
        groups = self._groups()
        self._lengths = self._lengths_of(groups)
        self._seen = list(self._objects(groups))
        self._parameters = list({one for one in self._seen if isinstance(one, torch.Tensor)})
        self._places, self._need = self._state()

    def _groups(self) -> list[list[Any]]:
        """What the optimizers step."""
        return [group["params"] for optimizer in self._optimizers for group in optimizer.param_groups]

    def _lengths_of(self, groups: Iterable[list[Any]]) -> list[int]:
        """Of the tables, then of the groups."""
        return list(map(len, chain(self._tables, groups)))

    def _objects(self, groups: Iterable[list[Any]]) -> Iterator[Any]:
        """Parameters and modules in their tables, then what is in the groups."""
        return chain(chain.from_iterable(map(_VALUES, self._tables)), chain.from_iterable(groups))

    def _state(self) -> tuple[list[int], list[bool]]:
        """Where the parameters are, and which need a gradient."""
        with torch._C.DisableTorchFunctionSubclass():  # these do not read what a late weight has
            return list(map(_PLACE, self._parameters)), list(map(_NEEDS_GRADIENT, self._parameters))

    def same(self) -> bool:
        """Whether another look sees the same."""
        groups = self._groups()
        return (
            self._lengths_of(groups) == self._lengths
            and all(map(is_, self._objects(groups), self._seen))
            and self._state() == (self._places, self._need)
        )


class ToldSettings:
    """The settings of optimizers and of batch norm that must be equal on all workers, in words.

    They are put into words anew where a value is another object than before.
    """

    def __init__(self) -> None:
        self._seen: list[Any] = []
        self._words = ""

    def words(
        self, optimizers: Iterable[torch.optim.Optimizer], norms: Sequence[torch.nn.Module], ema_decay: float | None
    ) -> str:
        """Such as `lr 0.1, momentum 0.9`; empty: there is nothing to compare.

        Args:
            norms: layers that normalise, some of which the script may have set to evaluation.
            ema_decay: of averages of the weights; none: there are no averages.
        """
        values = [
            group[name]
            for optimizer in optimizers
            for group in optimizer.param_groups
            for name in _COMPARED
            if name in group
        ]
        seen = [*values, *(norm.training for norm in norms), ema_decay]
        if len(seen) == len(self._seen) and all(map(is_, seen, self._seen)):
            return self._words
        self._words = _words(optimizers, norms, ema_decay)
        self._seen = seen if all(map(_is_fixed, values)) else []
        return self._words


def _is_fixed(value: Any) -> bool:
    return type(value) in _FIXED or (type(value) is tuple and all(map(_is_fixed, value)))


def _words(
    optimizers: Iterable[torch.optim.Optimizer], norms: Sequence[torch.nn.Module], ema_decay: float | None
) -> str:
    told = [
        f"{name} {group[name]}"
        for optimizer in optimizers
        for group in optimizer.param_groups
        for name in _COMPARED
        if name in group
    ]
    if any(not norm.training for norm in norms):
        told.append("batch norm " + "".join("t" if norm.training else "e" for norm in norms))
    if ema_decay is not None:
        told.append(f"ema_decay {ema_decay}")
    return ", ".join(told)
