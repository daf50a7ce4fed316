"""The iteration in flight: how far it is, and what is known of it so far. Pure.

    begin -> BEGUN -> sent -> SENT -> summed -> SUMMED -> stepped -> STEPPED -> begin ... end

Steps in another order are mistakes of the training script: they raise TrainingError, which says what to call.
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
    STEPPED = 4  # the optimizer has changed the weights


class GradientSum(NamedTuple):
    """What the sum of one iteration told this worker."""

    view: GlobalView
    squared_norm: float  # |g|^2 of the global gradient; NaN where it was not measured


class IterationInFlight:
    """One object for all iterations of a training, one after the other.

    `batch` is there from BEGUN on, `loss`, `correct` and `grad_sq` from SENT on, `sum` from SUMMED on.
    """

    loss: float = math.nan  # mean over this worker's samples
    correct: float = math.nan  # NaN: the script does not tell
    grad_sq: float = math.nan  # |g_i|^2; NaN where it was not measured
    sum: GradientSum | None = None
    sum_before: GradientSum | None = None  # of the iteration before; none: it is the first, or the script left it

    def __init__(self) -> None:
        self._phase = Phase.NONE
        self._batch: Batch | None = None

    @property
    def batch(self) -> Batch:
        assert self._batch is not None, "no batch is handed out"
        return self._batch

    @property
    def has_batch(self) -> bool:
        return self._batch is not None

    @property
    def is_incomplete(self) -> bool:
        """Whether the script has left out a step that the other workers wait for."""
        return Phase.BEGUN <= self._phase < Phase.STEPPED

    @property
    def is_summed(self) -> bool:
        return self._phase >= Phase.SUMMED

    def begin(self, batch: Batch) -> None:
        """The script gets this batch. One that it has not called backward on is dropped; nobody knows of it."""
        if self._phase in (Phase.SENT, Phase.SUMMED):
            self.check_stepped()
        self._batch, self.sum_before, self.sum = batch, self.sum, None
        self._phase = Phase.BEGUN

    def check_backward(self) -> None:
        """Raises TrainingError unless `run.backward()` is what comes next."""
        if self._phase is not Phase.BEGUN:
            raise TrainingError("run.backward() belongs inside `for ... in run.batches(...)`, once per batch")

    def sent(self) -> None:
        self._phase = Phase.SENT

    def check_sent(self) -> None:
        """Raises TrainingError unless there is a sum to wait for, or to use."""
        if self._phase < Phase.SENT:
            raise TrainingError("optimizer.step() without run.backward(loss) in this iteration")

    def summed(self, view: GlobalView, squared_norm: float) -> None:
        self.sum = GradientSum(view, squared_norm)
        self._phase = Phase.SUMMED

    def check_step(self) -> GradientSum:
        """The sum that the optimizer's step uses. Raises TrainingError unless that step is what comes next."""
        self.check_sent()
        if self._phase is not Phase.SUMMED or self.sum is None:
            raise TrainingError("optimizer.step() a second time for one batch; call it once for every batch")
        return self.sum

    def stepped(self) -> None:
        self._phase = Phase.STEPPED

    def check_stepped(self) -> None:
        """Raises TrainingError if the script asks for the next batch too early."""
        if self._phase is not Phase.STEPPED:
            raise TrainingError("the loop went on without optimizer.step(); call it once for every batch")

    def end(self) -> None:
        """The script has had its last batch."""
        self._batch, self._phase = None, Phase.NONE
