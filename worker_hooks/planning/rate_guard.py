"""Takes weights and optimizer back and halves the learning rate when the loss rises or is not finite.

Every 40 iterations, if the loss is about as low as it ever was, it keeps a copy of weights and optimizer in memory, and
the copy before. When the loss rises (loss_watch.py), or a loss or a gradient is not finite, the newest copy becomes the
state of the training again, and the guard's part of the learning rate is halved. If that happens once more before
another copy was made, the copy before comes back: the newest one was made too late.

Samples, iterations and schedulers go on: no sample is repeated or left out, and the schedule of the script ends where
it would have ended. The iteration that failed changes no weight. All inputs come from the sums, so all workers do the
same at the same iteration, without a message, and go on with equal bits.

The guard halves the rate up to three times. After that, a loss that rises goes on, which is told once, and one that is
not finite ends the training as it would without guard.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from worker_hooks.planning.learning_rate import SMALLEST_GUARD, LearningRate, Noise
from worker_hooks.planning.loss_watch import BLOCK, LossWatch

KEPT = 2  # copies
RISES = "the loss rises"


class RollbackPoint(NamedTuple):
    """A copy of the state in memory."""

    iteration: int
    layout: object  # of parameters and optimizers; a copy fits no other
    noise: Noise
    watch: LossWatch  # what it knew then
    put_back: Callable[[], None]


class RateGuard:
    """The guard of one training. It changes `rate.guard` and `rate.noise`.

    Args:
        tell: gets a sentence for people.
    """

    def __init__(self, rate: LearningRate, tell: Callable[[str], None]) -> None:
        self._rate = rate
        self._tell = tell
        self._watch = LossWatch()
        self._copies: list[RollbackPoint] = []  # oldest first
        self._used = False  # the newest copy was put back already
        self._next_copy = 0  # iteration from which on one is due
        self._told = False

    @property
    def level(self) -> float:
        """What the loss is compared with."""
        return self._watch.level

    def before_batch(self, iteration: int, layout: object, copy_state: Callable[[], Callable[[], None]]) -> None:
        """Keep a copy if one is due. Call it between a step and the next batch.

        Args:
            copy_state: makes a copy of weights and optimizer, and returns what puts it back.
        """
        if self._copies and self._copies[-1].layout != layout:
            self._copies.clear()
        if not self._copies or (iteration >= self._next_copy and self._watch.is_sound):
            self._copies.append(RollbackPoint(iteration, layout, self._rate.noise, self._watch.copy(), copy_state()))
            del self._copies[:-KEPT]
            self._used, self._next_copy = False, iteration + BLOCK

    def reason(self, loss: float, batch: float, broken: str, gradient_is_finite: Callable[[], bool]) -> str:
        """Why to go back after this sum; empty: training goes on.

        Args:
            loss: of all workers; of those with a finite one, if there are others.
            batch: the global batch.
            broken: says which workers have a loss that is not finite; empty: none has.
        """
        if broken or not math.isfinite(loss):
            why = broken or "the loss is not finite"
        elif not gradient_is_finite():
            why = "the gradient is not finite"
        else:
            why = RISES if self._watch.rises(loss, batch) else ""
        if not why or (self._copies and self._rate.guard > SMALLEST_GUARD):
            return why
        if not self._told:
            self._told = True
            self._tell(f"{why}, and the learning rate has been halved as often as it may be")
        self._watch.forgive()
        return ""

    def roll_back(self, iteration: int) -> int:
        """Put a copy back in `iteration` and halve the rate. Returns the iteration of the copy."""
        if self._used and len(self._copies) > 1:
            self._copies.pop()
        copy, self._used, self._next_copy = self._copies[-1], True, iteration + BLOCK
        self.put_back()
        self._rate.noise, self._watch = copy.noise, copy.watch.copy()
        self._rate.guard /= 2
        return copy.iteration

    def put_back(self) -> None:
        """Undo what a step has changed in the iteration that rolled back."""
        self._copies[-1].put_back()
