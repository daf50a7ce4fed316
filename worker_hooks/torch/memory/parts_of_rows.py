"""A batch in parts whose backward pass may end before the last one, where that is exact.

It is where every row of the batch goes through the model by itself, and counts in the loss by itself and like all
others. Then the parts that were computed have given the gradient of their rows. Before a batch is divided this is seen
of the rows and of the model, and before its backward pass of the loss. A script where it is not seen is left alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from worker_hooks.memory.memory_ceiling import pieces
from worker_hooks.torch.loss.loss_graph import LossCheck
from worker_hooks.torch.loss.row_terms import of_rows
from worker_hooks.torch.memory.batch_rows import BatchRows
from worker_hooks.torch.memory.divided_batch import TorchDividedBatch, is_call
from worker_hooks.torch.memory.single_rows import cannot_be_divided, joins_rows

if TYPE_CHECKING:
    from worker_hooks.memory.batch_parts import BatchParts
    from worker_hooks.memory.memory_ceiling import WorkerMemory
    from worker_hooks.training import Training

FEWEST_ROWS = 2  # of a part (chosen by us)


class PartsOfRows:
    """Of the batches of one training.

    Attributes:
        parts: of the batch in flight.
    """

    def __init__(self, parts: BatchParts, memory: WorkerMemory, training: Training) -> None:
        self.parts = parts
        self._memory, self._training = memory, training
        self._rows: BatchRows | None = None  # of the batch in flight, where it is to have parts
        self._tried: set[torch.nn.Module] = set()  # models that compute each row by itself
        self._called_in = self._divided_in = -1  # the newest iterations with a call of a model, and with one in parts
        self._loss_check = LossCheck()

    def prepare(self, data: Any, samples: int) -> None:
        """The script is about to get this batch."""
        self._rows = BatchRows(data, samples) if self.parts.number() > 1 else None

    def parts_of(self, batch: TorchDividedBatch) -> int:
        """How many parts this call of a model is to have; 1: it is computed whole, as far as memory allows."""
        now = self._training.now.batch
        self._called_in = now.iteration
        smallest, ceiling = max(self._memory.smallest_micro_batch(), FEWEST_ROWS), self._memory.ceiling
        number = min(self.parts.number(), now.samples // smallest)
        if number <= 1 or self._rows is None:
            return 1
        at_once = ceiling.at_once(now.samples, smallest)
        if not ceiling.is_proven(at_once):
            return 1
        if reason := self._against(batch, max(at_once, 2 * smallest)):
            self.parts.refuse(reason)
            return 1
        self._divided_in = now.iteration
        return number

    def _against(self, batch: TorchDividedBatch, at_once: int) -> str:
        """Why this call must not be divided; empty: it may be. `at_once`: rows that fit into memory."""
        name = type(batch.model).__name__
        if not self._training.data.rows_are_samples:
            return "a collate function of the script makes its batches, so which samples their rows are is not known"
        if not batch.is_divisible:
            return f"none of the tensors that the script gives to {name} has the rows of the batch"
        if batch.asks_for_gradients:
            return f"the script asks for the gradient of what it gives to {name}"
        assert self._rows is not None
        if reason := self._rows.strange(batch.rows) or cannot_be_divided(batch.model):
            return reason
        if batch.model not in self._tried:
            if reason := joins_rows(batch, pieces(at_once, at_once, fewest=min(self.parts.number(), at_once // 2))):
                return reason
            self._tried.add(batch.model)
        return ""

    def check(self, loss: torch.Tensor, scale: float) -> None:
        """Before the backward pass of a `loss`: let it end early if that is exact.

        `scale`: of a GradScaler, that the loss is multiplied by.
        """
        now = self._training.now
        if self.parts.number() == 1:
            return
        if self._called_in != now.batch.iteration:
            self.parts.refuse("the script has called no model that it gave to attach(), or has compiled it afterwards")
        if self._divided_in != now.batch.iteration:
            return
        call, reason = of_rows(loss, is_call)
        found = self._loss_check.of_mean(loss, now.batch.samples, scale, is_whole=True)
        if found:
            reason = f"its loss {re.split('[;:]', found[0].text)[0]}"
        if reason:
            self.parts.refuse(reason)
        else:
            call.batch.ends_at = self._ends_at

    def _ends_at(self, rows: int) -> bool:
        """Whether the backward pass ends here, where the first rows, so many, are left."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.current_stream().synchronize()  # the time that counts is that of what is computed
        if not self.parts.is_over():
            return False
        self.parts.left(rows)
        return True
