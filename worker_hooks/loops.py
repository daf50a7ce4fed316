"""The loops that a script writes: over passes, and over the batches of a pass or of several.

A loop over batches ends by itself at its limit, or the script leaves it by `break`. The script usually trains a batch
before it asks for the next one; taken_ahead.py has what happens where it is one batch ahead.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dynamix_ps.errors import TrainingError
from worker_hooks.iteration.script_limits import Asked, Limit, ScriptLimits
from worker_hooks.iteration.taken_ahead import (
    TakenAhead,
    are_alike,
    not_known,
    not_possible,
    of_another_thread,
    two_ahead,
)
from worker_hooks.loading.batches import Batch, limit_reached

if TYPE_CHECKING:
    from worker_hooks.training import Training


class Loops:
    """Those of one training, one after the other.

    Attributes:
        asked: how far the script asks to train.
        taken: batches that the script has taken before it trains them.
        sums_backward: whether `loss.backward()` in the newest loop over batches is `run.backward(loss)`.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self.asked, self.taken = ScriptLimits(), TakenAhead()
        self.sums_backward = False
        self._loop: object | None = None  # over batches, that the script is in
        self._has_last = False  # the loop has no more batches, and the script has yet to train the last one

    def begin_at(self, epochs_begun: Sequence[int]) -> None:
        """Training begins, or goes on after these calls of `run.epochs()`."""
        self.asked, self.taken = ScriptLimits(epochs_begun), TakenAhead()

    def epochs(self, count: int) -> Iterator[int]:
        """`run.epochs(count)`."""
        self._leave_open()
        asked = self.asked
        first, left = asked.passes(count, self._training.progress.cursor)
        call = asked.epochs_calls
        self._training.observer.training_asked(first + count, None)
        try:
            for number in left:
                asked.pass_number = number
                yield number - first
                if asked.epochs_calls != call:
                    raise TrainingError(
                        "two loops over run.epochs() of one training at once; finish one before the next begins"
                    )
                self._leave_open()
            asked.epochs_complete(left.stop)
        finally:
            if asked.epochs_calls == call:
                self._leave_open()
                asked.pass_number = None

    def batches(self, epochs: Limit, iterations: Limit, sums_backward: bool = False) -> Iterator[Any]:
        """`run.batches(epochs, iterations)`, or a loop over `run.loader`."""
        training = self._training
        if self.asked.pass_number is None:
            one_pass = epochs == 1 and iterations is None
            training.observer.training_asked(epochs, iterations, may_go_on=one_pass)
        self._leave_open()
        training.begin()
        asked = self.asked.batches(epochs, iterations, training.progress.cursor)
        if training.progress.cursor.epoch < asked.first_pass:
            training.progress.leave_passes(asked.first_pass)
        training.observer.loop_begun(training.progress.iteration)
        self._loop = mine = object()
        self.sums_backward = sums_backward
        self.taken.begin_loop()
        try:
            for batch in self._batches_until(asked.last_epoch, asked.last_iteration):
                self._hand_out(batch)
                yield batch.data
                if self._loop is not mine:
                    raise TrainingError(
                        "two loops over run.batches() of one training at once; finish one before the next begins, "
                        "or attach two trainings"
                    )
                if not self._keeps_untrained:
                    self._training.finish_batch()
            self._end_of(asked)
        finally:
            if self._loop is mine:
                self._leave()

    def _batches_until(self, last_epoch: Limit, last_iteration: Limit) -> Iterator[Batch]:
        """Batches until one of the limits is reached. What is found missing after the last one comes too."""
        training, limits = self._training, (last_epoch, last_iteration)
        yield from training.data.stream.run(training.progress.cursor, training.progress.iteration, *limits)
        while (place := training.data.stream.resumable(training.progress.cursor, training.progress.iteration)[0]).owed:
            if limit_reached(place, training.progress.iteration, *limits):
                return
            yield from training.data.stream.run(training.progress.cursor, training.progress.iteration, *limits)

    def _hand_out(self, batch: Batch) -> None:
        """The script gets `batch`, and trains it next unless it takes batches ahead."""
        taken = self.taken
        taken.thread = threading.get_ident()
        self._check_one_waits(batch)
        if self._keeps_untrained:
            taken.wait(batch)
        elif (following := taken.take()) is not None:
            self._training.begin_batch(following)
            taken.wait(batch)
        else:
            self._training.begin_batch(batch)
        self._training.adapter.prepare(batch.data, batch.samples)

    def _check_one_waits(self, newest: Batch | None) -> None:
        """Raises TrainingError if the script does not train the batch at hand before it asks for a third one.

        In a loop that has not shown yet that it takes batches ahead, it leaves batches out.
        """
        waiting = self.taken.waiting
        if waiting is None or newest is None or not self._keeps_untrained:
            return
        if self.taken.is_certain:
            raise two_ahead(newest)
        self._leave_out_for(waiting)
        self._training.finish_batch()

    @property
    def _keeps_untrained(self) -> bool:
        """Whether the script has a batch of which no gradient was computed, and will train it now."""
        now = self._training.now
        if not self.taken.is_usual or not now.has_batch or now.is_counted:
            return False
        return not now.is_summed and not self._training.sums.has_of_batch

    def _end_of(self, asked: Asked) -> None:
        """The script has got all batches that it has asked for. It may still have to train the last one."""
        training = self._training
        self._check_one_waits(self.taken.waiting)
        self._has_last = self._keeps_untrained
        if (last := self.taken.take()) is not None:
            self._training.begin_batch(last)
            self._has_last = True
        self.asked.complete(asked, training.progress.iteration + self._has_last)
        training.adapter.look_up_schedules()
        if self._has_last:
            self._loop = self
        else:
            training.in_hand.samples = 0
            self._end()

    def close(self) -> None:
        """The training ends."""
        if self._has_last:
            self._leave()

    def _leave_open(self) -> None:
        """The script goes on elsewhere: it has left the loop over batches, although something still refers to it."""
        if self._loop is not None:
            self._leave()

    def _leave(self) -> None:
        """The script has left the loop over batches before its end. A batch that it has not used comes again."""
        training, now = self._training, self._training.now
        if self._has_last:
            self._has_last = False
            self._training.finish_batch()
            self._end()
            return
        if now.is_summed or training.sums.has_of_batch:
            self._training.count_iteration()
        elif now.has_batch and not now.is_counted:
            now.leave_out()
        if self.asked.break_ends_pass:
            rest, _ = training.data.stream.resumable(training.progress.cursor, training.progress.iteration)
            if training.progress.cursor.is_inside or rest.is_inside:
                training.progress.leave_passes(training.progress.cursor.next_pass)
        self.asked.left(training.progress.cursor.epoch, training.progress.iteration)
        self._end()

    def _end(self) -> None:
        self._loop = None
        self.taken.begin_loop()
        self._training.now.end()
        self._training.observer.loop_ended(self._training.progress.iteration)

    def settle(self, loss: Any) -> None:
        """Before the backward pass of `loss`: the batch that it is of becomes the one at hand.

        Raises TrainingError, on all workers, where that is not known or cannot be right.
        """
        training, taken, now = self._training, self.taken, self._training.now
        if not now.has_batch:
            return
        if taken.thread not in (None, threading.get_ident()):
            raise self._told_all(of_another_thread(now.batch))
        if not taken.is_open:
            return
        batches = taken.candidates(now.batch)
        if len(batches) == 1:  # another loss of a batch that is in doubt
            return
        older, newer = batches[-2:]
        number = training.adapter.batch_of(loss, [batch.data for batch in batches])
        before, taken.doubtful = taken.doubtful, None
        if number is None or (older is before and number == len(batches) - 2):
            if not are_alike(older, newer):
                raise self._told_all(not_known(newer))
            taken.doubtful = newer if taken.waiting is None else None
        elif number < len(batches) - 2:
            raise self._told_all(two_ahead(newer))
        elif taken.waiting is not None:
            taken.is_certain = number == len(batches) - 2
            if not taken.is_certain:
                self._leave_out_for(newer)
        elif number == len(batches) - 2:
            self._check_possible(newer)
            self._training.take_back(older)
        taken.left_out.clear()

    def _leave_out_for(self, newer: Batch) -> None:
        """The script was to train the batch at hand now, and goes on with the one after it."""
        taken = self.taken
        taken.is_usual, taken.waiting = False, None
        self._training.finish_batch()
        self._training.begin_batch(newer)

    def _check_possible(self, newer: Batch) -> None:
        """Raises TrainingError, on all workers, where the script must not take `newer` ahead."""
        training = self._training
        for is_so, where in (
            (training.data.is_stream, "with a stream or shards"),
            (training.membership is not None, "in an elastic job"),
            (training.computes_in_parts, "where batches are computed in parts (memory, at_once, rehearsals)"),
        ):
            if is_so:
                raise self._told_all(not_possible(newer, where))

    def _told_all(self, error: TrainingError) -> TrainingError:
        """`error`, once all workers know that this one does not go on."""
        self._training.sums.announce("run.backward() for a batch that it cannot train")
        return error
