"""One process that trains as people do without us: what every case is compared with.

`plain_attach` takes the place of `dynamix.attach` in a case. Its batches are those of all workers put together, as the
workers have recorded them, and everything else is torch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

Loops = list[list[list[int]]]  # of one attach: loop -> batch -> sample numbers


class PlainRun:
    """What a case uses of a run."""

    rank, size = 0, 1

    def __init__(self, models: Any, data: Any, loops: Loops) -> None:
        self._models: Sequence[nn.Module] = [models] if isinstance(models, nn.Module) else models
        self._dataset, self._loops = getattr(data, "dataset", data), iter(loops)  # of a loader, its data set
        self._registered: dict[str, Any] = {}
        self.iteration = 0

    def epochs(self, count: int) -> Iterator[int]:
        return iter(range(count))

    def batches(self, epochs: int | None = None, iterations: int | None = None) -> Iterator[Any]:
        for rows in next(self._loops):
            yield self._dataset[torch.tensor(rows)]
            self.iteration += 1

    @property
    def loader(self) -> Iterator[Any]:
        return self.batches(1)

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def backward(self, loss: torch.Tensor, correct: Any = None, weight: Any = None, reduction: str = "mean") -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def synchronize(self) -> None:
        pass

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(self._parameters(), max_norm)

    def clip_grad_value_(self, clip_value: float) -> None:
        torch.nn.utils.clip_grad_value_(self._parameters(), clip_value)

    def evaluate(self, dataset: Any, score: Callable[..., Any]) -> Any:
        with torch.no_grad():
            return score(*dataset[torch.arange(len(dataset))]) / len(dataset)

    def mean(self, values: Any, weight: float = 1.0) -> Any:
        return tree_map(float, values)

    def register(self, **objects: Any) -> None:
        self._registered |= objects

    def state_dict(self) -> dict[str, Any]:
        return {name: one.state_dict() for name, one in self._registered.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, one in self._registered.items():
            one.load_state_dict(state[name])

    def close(self) -> None:
        pass

    def _parameters(self) -> list[nn.Parameter]:
        return [p for model in self._models for p in model.parameters() if p.grad is not None]


def plain_attach(recorded: list[Loops]) -> Callable[..., PlainRun]:
    """In place of `dynamix.attach`; `recorded` has the loops of each attach."""
    runs = iter(recorded)

    def attach(models: Any, optimizers: Any, dataset: Any, **_: Any) -> PlainRun:
        return PlainRun(models, dataset, next(runs))

    return attach


def put_together(of_workers: Sequence[list[Loops]]) -> list[Loops]:
    """The batches of all workers as one: in the order of ranks."""
    return [
        [
            [[row for part in parts for row in part] for parts in zip(*batches, strict=True)]
            for batches in zip(*loops, strict=True)
        ]
        for loops in zip(*of_workers, strict=True)
    ]
