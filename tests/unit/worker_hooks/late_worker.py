"""A worker whose batches are in parts, and whose deadline passes after as many parts as a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from worker_hooks.memory.batch_parts import BatchParts
from worker_hooks.memory.memory_ceiling import MemoryCeiling, WorkerMemory
from worker_hooks.torch.memory.micro_batches import TorchMicroBatchedForward
from worker_hooks.torch.memory.parts_of_rows import PartsOfRows
from worker_hooks.torch.parameters import TorchParameters

NEVER = 99

Loss = Callable[..., torch.Tensor]


class Worker:
    """One with these models, without a training around it.

    Attributes:
        ends_after: parts of the backward pass.
        told: why its batches cannot end early.
    """

    def __init__(self, *models: nn.Module, at_once: int | None = None, searches: bool = False) -> None:
        self.ends_after, self.told, self.asked = NEVER, list[str](), 0
        self.parts = BatchParts(lambda: True, self._is_over, self.told.append)
        self.now: Any = SimpleNamespace(has_batch=True)
        self.models = models
        parameters = TorchParameters(models, [torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.1)])
        parameters.look_up()
        ceiling = MemoryCeiling(at_once, searches)
        memory = WorkerMemory(ceiling, lambda: parameters.smallest_share, lambda: self.now, lambda sentence: None)
        self.data = SimpleNamespace(rows_are_samples=True)
        training: Any = SimpleNamespace(now=self.now, data=self.data)
        self.of_rows = PartsOfRows(self.parts, memory, training)
        self.forwards = [TorchMicroBatchedForward(memory, parameters, model, self.of_rows) for model in models]

    def _is_over(self) -> bool:
        self.asked += 1
        return self.asked >= self.ends_after

    def begin(self, *batch: torch.Tensor, iteration: int = 0) -> None:
        """This worker gets a batch."""
        self.now.batch = SimpleNamespace(samples=len(batch[0]), size=len(batch[0]), iteration=iteration)
        self.asked = 0
        self.parts.begin()
        self.of_rows.prepare(batch, len(batch[0]))

    def backward(self, loss: torch.Tensor, scale: float = 1.0) -> None:
        self.of_rows.check(loss, scale)
        loss.backward()


def gradients(model: nn.Module) -> list[torch.Tensor]:
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found


def assert_equal(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor], tolerance: float = 1e-12) -> None:
    assert len(one) == len(other) > 0
    for first, second in zip(one, other, strict=True):
        torch.testing.assert_close(first, second, rtol=tolerance, atol=tolerance)


def assert_cut(
    worker: Worker, loss: Loss, batch: Sequence[torch.Tensor], ends_after: int, tolerance: float = 1e-12
) -> int:
    """The backward pass of `loss(model, *batch)` ends after so many parts: its gradient, times b/m, is that of plain
    torch for the m rows at the end of the batch. Returns m."""
    model, rows = worker.models[0], len(batch[0])
    worker.ends_after = ends_after
    worker.begin(*batch)
    model.zero_grad()
    worker.backward(loss(model, *batch))
    left = worker.parts.rows_left
    found = [gradient * (rows / (rows - left)) for gradient in gradients(model)]
    worker.forwards[0].remove()
    loss(model, *(one[left:] for one in batch)).backward()
    assert_equal(found, gradients(model), tolerance)
    assert not worker.told
    return rows - left
