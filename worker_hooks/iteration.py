"""The iteration in flight: how far it is, and what is known of it so far. Pure.

    begin -> BEGUN -> sent -> SENT -> summed -> SUMMED -> stepped -> STEPPED -> begin ... end

An iteration is one batch. It usually has one sum and one step; a script may also accumulate over several batches before
it sums, or sum and step several times for one batch (several optimizers). Steps in an impossible order are mistakes of
the training script: they raise TrainingError, which says what to call.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

from dynamix_ps.errors import TrainingError
from worker_hooks.batches import Batch
from worker_hooks.trailer import GlobalView


class Phase(IntEnum):
    """How far an iteration is."""

    NONE = 0  # the script has no batch
    BEGUN = 1  # it has one
    SENT = 2  # `run.backward()` has sent the gradients
    SUMMED = 3  # the gradients of the model are the global ones
    STEPPED = 4  # an optimizer has changed the weights


class GradientSum(NamedTuple):
    """What one sum told this worker."""

    view: GlobalView
    squared_norm: float  # |g|^2 of the global gradient; NaN where it was not measured
    batches: int  # that are in it
    sizes: tuple[float, ...]  # what the part of every worker is worth, in the plan's unit (units.py)


class IterationInFlight:
    """One object for all iterations of a training, one after the other.

    `batch` is there from BEGUN on, `correct` and `grad_sq` from SENT on, `sum` after the first sum.
    """

    loss: float = math.nan  # of the last sum: mean over this worker's samples, added up over its batches
    weighted_loss: float = math.nan  # the same, each batch times this worker's share of it; or times its `units`
    units: float | None = None  # that the losses of the sum are a mean over; none: samples
    correct: float = math.nan  # NaN: the script does not tell
    grad_sq: float = math.nan  # |g_i|^2; NaN where it was not measured
    sum: GradientSum | None = None  # the last one

    def __init__(self) -> None:
        self._phase = Phase.NONE
        self._batch: Batch | None = None
        self._due: list[Batch] = []  # batches that are in no sum yet, the present one too
        self._losses = self._weighted_losses = 0.0  # since the last sum
        self.samples = self.size = 0  # of this worker in the last sum: its samples, and these in the plan's unit
        self.global_size = 0  # of all workers
        self.is_counted = False  # the iteration is complete
        self._stepped: set[int] = set()  # optimizers that have used the last sum

    @property
    def batch(self) -> Batch:
        assert self._batch is not None, "no batch is handed out"
        return self._batch

    @property
    def has_batch(self) -> bool:
        return self._batch is not None

    @property
    def weight(self) -> float:
        """This worker's share of the present batch."""
        return self.batch.samples / self.global_samples

    @property
    def global_samples(self) -> int:
        """Samples of all workers in the present batch."""
        return sum(self.batch.step.sizes)

    @property
    def loss_weight(self) -> float:
        """What the loss of the last sum is a mean over: units where the script gives them, samples otherwise."""
        return self.samples if self.units is None else self.units

    @property
    def is_summed(self) -> bool:
        """Whether this iteration has had a sum."""
        return self._phase >= Phase.SUMMED

    @property
    def batches_due(self) -> int:
        """Batches that the next sum is of."""
        return max(len(self._due), 1)

    @property
    def samples_due(self) -> int:
        """Samples of this worker that the next sum is of."""
        return sum(batch.samples for batch in self._due or [self.batch])

    @property
    def sizes_due(self) -> tuple[int, ...]:
        """Samples of every worker that the next sum is of, as the plan has them."""
        due = self._due or [self.batch]
        return tuple(map(sum, zip(*(batch.step.sizes for batch in due), strict=True)))

    @property
    def spent_due(self) -> tuple[int, ...]:
        """The same in the unit of the plan."""
        due = self._due or [self.batch]
        return tuple(map(sum, zip(*(batch.step.spent for batch in due), strict=True)))

    def begin(self, batch: Batch) -> None:
        """The script gets this batch."""
        self._batch = batch
        self._due.append(batch)
        self._phase, self.is_counted = Phase.BEGUN, False

    def leave_out(self) -> None:
        """The script has done nothing with this batch: it is in no sum."""
        self._due.pop()

    def add_loss(self, loss: float) -> None:
        """The script has called backward on a loss of the present batch."""
        if self.batch.samples:
            self._losses += loss
            self._weighted_losses += loss * self.weight

    def check_backward(self) -> None:
        """Raises TrainingError unless there is a batch."""
        if self._phase is Phase.NONE:
            raise TrainingError("run.backward() belongs inside `for ... in run.batches(...)`")

    def close_losses(self) -> None:
        """All losses of the coming sum are added."""
        self.loss, self.weighted_loss = self._losses, self._weighted_losses
        if self.units is not None:
            self.weighted_loss = self._losses * self.units if self.units > 0 else 0.0  # a mean over nothing may be NaN
        self._losses = self._weighted_losses = 0.0

    def sent(self) -> None:
        self._phase = Phase.SENT

    def summed(self, view: GlobalView, squared_norm: float, sizes: tuple[float, ...]) -> None:
        self.sum = GradientSum(view, squared_norm, self.batches_due, sizes)
        self.samples, self.global_size = self.samples_due, sum(self.spent_due)
        self.size = sum(batch.size for batch in self._due or [self.batch])
        self._due.clear()
        self._stepped.clear()
        self._phase = Phase.SUMMED

    def check_summed(self) -> None:
        """Raises TrainingError if gradients are not global yet."""
        if self._phase < Phase.SUMMED:
            raise TrainingError("run.synchronize() without run.backward(loss) in this iteration")

    def check_step(self, optimizer: int) -> GradientSum:
        """The sum that a step of this optimizer (number) uses. Raises TrainingError if there is none for it."""
        if self._phase < Phase.SUMMED or self.sum is None:
            raise TrainingError("optimizer.step() without run.backward(loss) in this iteration")
        if optimizer in self._stepped:
            raise TrainingError("optimizer.step() a second time for one run.backward(); call it once for each")
        return self.sum

    def stepped(self, optimizer: int) -> None:
        self._stepped.add(optimizer)
        self._phase = Phase.STEPPED

    def end(self) -> None:
        """The script has had its last batch."""
        self._batch, self._phase = None, Phase.NONE
