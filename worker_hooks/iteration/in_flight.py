"""The iteration in flight: how far it is, and what is known of it so far. Pure.

    begin -> BEGUN -> sent -> SENT -> summed -> SUMMED -> stepped -> STEPPED -> begin ... end

An iteration is one batch. It usually has one sum and one step; a script may also accumulate over several batches before
it sums, or sum and step several times for one batch (several optimizers). Steps in an impossible order are mistakes of
the training script: they raise TrainingError, which says what to call.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from dynamix_ps.errors import TrainingError
from worker_hooks.exchange.trailer import GlobalView
from worker_hooks.loading.batches import Batch
from worker_hooks.planning.learning_rate import StepRate
from worker_hooks.sampling.sampler import Step


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

    @property
    def batch_size(self) -> float:
        """What one of its batches is worth: of all workers, the mean of the batches."""
        total = sum(self.sizes)
        return max(total if self.batches == 1 else total // self.batches, 1)

    def packed(self) -> dict[str, Any]:
        """In JSON's types, for a worker that follows this one."""
        return {**self._asdict(), "view": self.view._asdict()}

    @classmethod
    def of(cls, packed: Mapping[str, Any]) -> GradientSum:
        """What `packed` returned on another worker."""
        return cls(**{**packed, "view": GlobalView(**packed["view"]), "sizes": tuple(packed["sizes"])})


class WorkerPart(NamedTuple):
    """What one worker of this process has in a sum.

    Sizes are its own. Of the losses, units and correct samples of a process with several workers only the sum is known:
    each worker has its share of it.
    """

    samples: int
    size: int  # of these samples, in the plan's unit
    weighted_loss: float
    correct: float  # NaN: the script does not tell
    judged: float  # samples or units that `correct` is of
    units: float | None  # that the losses are a mean over; none: samples
    grad_sq: float  # |g_i|^2; NaN where it was not measured

    @property
    def loss_weight(self) -> float:
        """What its loss is a mean over: units where the script gives them, samples otherwise."""
        return self.samples if self.units is None else self.units


class IterationInFlight:
    """One object for all iterations of a training, one after the other.

    `batch` and `weight` are there from BEGUN on, `correct` and `parts` from SENT on, `sum` after the first sum.
    """

    reduction = "mean"  # over samples, of the losses of the sum; or "sum"
    loss: float = math.nan  # of the last sum: mean over this process's samples, added up over its batches
    weighted_loss: float = math.nan  # the same, each batch times this process's share of it; or times its `units`
    units: float | None = None  # that the losses of the sum are a mean over; none: samples
    correct: float = math.nan  # NaN: the script does not tell
    parts: tuple[WorkerPart, ...] = ()  # of the workers of this process in the last sum
    sum: GradientSum | None = None  # the last one
    rate: StepRate = StepRate()  # of the last step
    weight: float = 0.0  # this process's share of the present batch
    missing: Collection[int] = ()  # workers that were to be in the coming sum, and are not
    rolled_back = False  # the state is that of an earlier iteration again, and this one changes nothing

    def __init__(self) -> None:
        self._phase = Phase.NONE
        self._batch: Batch | None = None
        self._due: list[Batch] = []  # batches that are in no sum yet, the present one too
        self._losses: list[tuple[float, Batch]] = []  # since the last sum
        self.spent: tuple[int, ...] = ()  # by every worker in the last sum, in the plan's unit
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
    def is_between_sums(self) -> bool:
        """Whether every batch so far is in a sum."""
        return not self._due

    @property
    def global_samples(self) -> int:
        """Samples of all workers in the present batch."""
        return sum(self.batch.step.sizes)

    @property
    def is_summed(self) -> bool:
        """Whether this iteration has had a sum."""
        return self._phase >= Phase.SUMMED

    @property
    def batches_due(self) -> int:
        """Batches that the next sum is of."""
        return max(len(self._due), 1)

    @property
    def first_due(self) -> int:
        """The first iteration of those that the next sum is of."""
        return (self._due or [self.batch])[0].iteration

    @property
    def samples_due(self) -> int:
        """Samples of this process that the next sum is of."""
        return sum(batch.samples for batch in self._due or [self.batch])

    @property
    def sizes_due(self) -> tuple[int, ...]:
        """Samples of every worker that the next sum is of, as the plan has them; 0 of those that are missing."""
        return self._added_up([batch.step.sizes for batch in self._due or [self.batch]])

    @property
    def spent_due(self) -> tuple[int, ...]:
        """The same in the unit of the plan."""
        return self._added_up([batch.step.spent for batch in self._due or [self.batch]])

    def _added_up(self, sizes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        total = tuple(sizes[0] if len(sizes) == 1 else map(sum, zip(*sizes, strict=True)))
        return tuple(0 if rank in self.missing else size for rank, size in enumerate(total)) if self.missing else total

    @property
    def steps_due(self) -> list[Step]:
        """The samples of the batches that the next sum is of."""
        return [batch.step for batch in self._due or [self.batch]]

    def begin(self, batch: Batch) -> None:
        """The script gets this batch."""
        self._take(batch)
        self._due.append(batch)
        self._phase, self.is_counted, self.rolled_back = Phase.BEGUN, False, False

    def leave_out(self) -> None:
        """The script has done nothing with this batch: it is in no sum."""
        self._due.pop()

    def take_back(self, batch: Batch) -> None:
        """The batch at hand is `batch` again, which was left out for a newer one."""
        self._take(batch)
        self._due[-1] = batch

    def _take(self, batch: Batch) -> None:
        self._batch = batch
        self.weight = batch.samples / self.global_samples

    def add_loss(self, loss: float) -> None:
        """The script has called backward on a loss of the present batch."""
        if self.batch.samples:
            self._losses.append((loss, self.batch))

    def check_backward(self) -> None:
        """Raises TrainingError unless there is a batch."""
        if self._phase is Phase.NONE:
            raise TrainingError(
                "run.backward() belongs inside `for ... in run.batches(...)`, before the next batch is asked for"
            )

    def close_losses(self) -> None:
        """All losses of the coming sum are added."""
        self.loss = self.weighted_loss = 0.0
        for loss, batch in self._losses:
            mean = loss if self.reduction == "mean" else loss / batch.samples
            self.loss += mean
            self.weighted_loss += mean * (batch.samples / sum(batch.step.sizes))
        if self.units is not None:
            self.weighted_loss = self.loss * self.units if self.units > 0 else 0.0  # a mean over nothing may be NaN
        self._losses.clear()

    def divide(self, here: range, grad_sq: Sequence[float]) -> None:
        """The workers of this process, `here`, have these squared norms of their gradients in the coming sum."""
        judged = self.batch.samples if self.units is None else max(self.units, 0.0)
        if len(here) == 1:
            size = sum(batch.size for batch in self._due or [self.batch])
            whole = (self.samples_due, size, self.weighted_loss, self.correct, judged, self.units)
            self.parts = (WorkerPart(*whole, grad_sq[0]),)
            return
        sizes, spent = (due[here.start : here.stop] for due in (self.sizes_due, self.spent_due))
        self.parts = tuple(
            WorkerPart(
                samples=samples,
                size=size,
                weighted_loss=self.weighted_loss * share,
                correct=self.correct * share,
                judged=judged * share,
                units=None if self.units is None else self.units * share,
                grad_sq=squared,
            )
            for samples, size, share, squared in zip(sizes, spent, self.shares(here), grad_sq, strict=True)
        )

    def shares(self, here: range) -> list[float]:
        """The part of each of these workers in what all of them give to the next sum; they add up to 1.

        Where losses are means over units, their numbers of units are not known one by one: sizes stand for them.
        """
        sizes = (self.sizes_due if self.units is None else self.spent_due)[here.start : here.stop]
        return [size / sum(sizes) for size in sizes]

    def sent(self) -> None:
        self._phase = Phase.SENT

    def summed(self, view: GlobalView, squared_norm: float, sizes: tuple[float, ...]) -> None:
        self.sum = GradientSum(view, squared_norm, self.batches_due, sizes)
        self.spent = self.spent_due
        self.missing = ()
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
            raise TrainingError(
                "optimizer.step() without run.backward(loss) in this iteration; call run.backward(loss) for the last "
                "loss before optimizer.step()"
            )
        if optimizer in self._stepped:
            raise TrainingError("optimizer.step() a second time for one run.backward(); call it once for each")
        return self.sum

    def stepped(self, optimizer: int) -> None:
        self._stepped.add(optimizer)
        self._phase = Phase.STEPPED

    def end(self) -> None:
        """The script has had its last batch."""
        self._batch, self._phase = None, Phase.NONE
