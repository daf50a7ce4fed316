"""How far the script asks to train, call after call. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dynamix_ps.errors import TrainingError
from worker_hooks.sampling.sampler import Cursor

Limit = int | None


class Asked(NamedTuple):
    """What one call of `run.batches()` asks for, in numbers of the whole training."""

    first_pass: int  # what is left of the passes before it is not trained
    last_epoch: Limit  # exclusive, as the next one
    last_iteration: Limit


class ScriptLimits:
    """Turns the limits of the calls of `run.batches()` and `run.epochs()` into limits of the whole training.

    A limit of `run.batches()` is of the whole training as long as it exceeds that of the calls before; otherwise it
    means that many more. So both usual loops over epochs do what they say. A call of `run.epochs(n)` has n passes of
    its own. A resumed script makes the same calls again, and the ones that are complete give nothing.

    Attributes:
        epochs_begun: the pass with which each call of `run.epochs()` began, those before a resume too.
        epochs_calls: of this process.
        pass_number: of the loop over `run.epochs()` that the script is in.
        was_left: the script has left the newest loop over batches before its end.
    """

    def __init__(self, epochs_begun: Sequence[int] = ()) -> None:
        self.epochs_begun = list(epochs_begun)
        self.epochs_calls = 0
        self.pass_number: int | None = None
        self.was_left = False
        self._any_call = False  # of both kinds, in this process
        self._epochs = self._iterations = 0  # where the calls so far have brought the script
        self._in_one_pass = False  # in a loop that asks for the pass at hand alone, or that one was left

    def passes(self, count: int, place: Cursor) -> tuple[int, range]:
        """(first pass, passes that are left to train) of a new call of `run.epochs(count)`; training is at `place`.

        It begins where the calls before have brought the training. A later call that has begun before a resume shows
        that this one is over.
        """
        call = self.epochs_calls
        if call == len(self.epochs_begun):
            self.epochs_begun.append(place.next_pass if self._any_call else 0)
        self.epochs_calls, self._any_call = call + 1, True
        first = self.epochs_begun[call]
        last = min([first + count, *self.epochs_begun[call + 1 : call + 2]])
        return first, range(max(first, place.epoch), last)

    def epochs_complete(self, last: int) -> None:
        """A loop over `run.epochs()` has come to its end, which is this pass (exclusive)."""
        self._epochs = max(self._epochs, last)

    def batches(self, epochs: Limit, iterations: Limit, place: Cursor) -> Asked:
        """What a new call of `run.batches()` asks for; training is at `place`.

        Raises TrainingError if it has no limit, or if its pass is over.
        """
        self._any_call = True
        if self.pass_number is not None and (epochs is not None or iterations is None):
            return self._inside_epochs(self.pass_number, iterations, place)
        if epochs is None and iterations is None:
            raise TrainingError(
                "run.batches() needs epochs=... or iterations=... unless it is inside `for ... in run.epochs(...)`"
            )
        first, new = place.complete_epochs, place.next_pass
        if self._in_one_pass and iterations is None and _beyond(epochs, new) == new + 1:  # both loops are of one pass
            first = self._epochs = new
        last = _beyond(epochs, self._epochs)
        self._in_one_pass = iterations is None and last == first + 1
        return Asked(first, last, _beyond(iterations, self._iterations))

    def _inside_epochs(self, number: int, iterations: Limit, place: Cursor) -> Asked:
        if place.complete_epochs > number:
            raise TrainingError(
                "run.batches() once more in one pass of run.epochs(), and the samples of this pass are used up; each "
                "pass has one loop over batches: give run.epochs() as many passes as there are loops, and score "
                "training data by run.evaluate()"
            )
        self._in_one_pass = iterations is None
        return Asked(number if self._in_one_pass else place.epoch, number + 1, iterations)

    def complete(self, asked: Asked, trained: int) -> None:
        """The call that asked for this has given all its batches, `trained` iterations in all."""
        self._in_one_pass = self.was_left = False
        self._epochs = max(self._epochs, asked.last_epoch or 0)
        self._iterations = max(self._iterations, trained if asked.last_iteration is None else asked.last_iteration)

    @property
    def break_ends_pass(self) -> bool:
        """Whether the pass at hand is over if the script leaves the loop that it is in."""
        return self.pass_number is not None and self._in_one_pass

    def left(self, epoch: int, iteration: int) -> None:
        """The script has left the loop after so many complete epochs and iterations."""
        self._epochs, self._iterations, self.was_left = epoch, iteration, True


def _beyond(limit: Limit, reached: int) -> Limit:
    return limit if limit is None or limit > reached else reached + limit
