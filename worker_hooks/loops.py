"""The loops that a script writes: over passes, and over the batches of a pass or of several.

A loop over batches ends by itself at its limit, or the script leaves it by `break`. The script usually trains a batch
before it asks for the next one; taken_ahead.py has what happens where it is one batch ahead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from dynamix_ps.errors import TrainingError
from worker_hooks.batches import Batch, limit_reached
from worker_hooks.resumable_model import ResumableModel
from worker_hooks.sampler import Cursor
from worker_hooks.script_limits import Asked, Limit
from worker_hooks.stream_source import StreamSource
from worker_hooks.taken_ahead import are_alike, not_known, not_possible, of_another_thread, two_ahead


class Loops:
    """Those of one training, one after the other."""

    def __init__(
        self,
        training: ResumableModel,
        begin_batch: Callable[[Batch], None],
        finish_batch: Callable[[], None],
        count_iteration: Callable[[], None],
        take_back: Callable[[Batch], None],
    ) -> None:
        """
        Args:
            begin_batch: a batch becomes the one at hand.
            finish_batch: the script has done all that it does with it.
            count_iteration: its iteration is complete, if it was trained.
            take_back: this batch, which has counted as left out for the one at hand, is at hand again.
        """
        self._training = training
        self._begin_batch, self._finish_batch = begin_batch, finish_batch
        self._count_iteration, self._take_back = count_iteration, take_back
        self._loop: object | None = None  # over batches, that the script is in
        self._has_last = False  # the loop has no more batches, and the script has yet to train the last one

    def epochs(self, count: int) -> Iterator[int]:
        """`run.epochs(count)`."""
        self._leave_open()
        asked = self._training._asked
        first, left = asked.passes(count, self._training._cursor)
        call = asked.epochs_calls
        self._training._observer.training_asked(first + count, None)
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

    def batches(self, epochs: Limit, iterations: Limit) -> Iterator[Any]:
        """`run.batches(epochs, iterations)`."""
        training = self._training
        if training._asked.pass_number is None:
            one_pass = epochs == 1 and iterations is None
            training._observer.training_asked(epochs, iterations, may_go_on=one_pass)
        self._leave_open()
        training._begin()
        asked = training._asked.batches(epochs, iterations, training._cursor)
        if training._cursor.epoch < asked.first_pass:
            self._begin_pass(asked.first_pass)
        training._observer.loop_begun(training.iteration)
        self._loop = mine = object()
        training._taken.begin_loop()
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
                    self._finish_batch()
            self._end_of(asked)
        finally:
            if self._loop is mine:
                self._leave()

    def _batches_until(self, last_epoch: Limit, last_iteration: Limit) -> Iterator[Batch]:
        """Batches until one of the limits is reached. What is found missing after the last one comes too."""
        training, limits = self._training, (last_epoch, last_iteration)
        yield from training._stream.run(training._cursor, training.iteration, *limits)
        while (place := training._stream.resumable(training._cursor, training.iteration)[0]).owed:
            if limit_reached(place, training.iteration, *limits):
                return
            yield from training._stream.run(training._cursor, training.iteration, *limits)

    def _hand_out(self, batch: Batch) -> None:
        """The script gets `batch`, and trains it next unless it takes batches ahead."""
        taken = self._training._taken
        taken.thread = threading.get_ident()
        self._check_one_waits(batch)
        if self._keeps_untrained:
            taken.wait(batch)
        elif (following := taken.take()) is not None:
            self._begin_batch(following)
            taken.wait(batch)
        else:
            self._begin_batch(batch)
        self._training._prepare(batch.data, batch.samples)

    def _check_one_waits(self, newest: Batch | None) -> None:
        """Raises TrainingError if the script does not train the batch at hand before it asks for a third one.

        In a loop that has not shown yet that it takes batches ahead, it leaves batches out.
        """
        waiting = self._training._taken.waiting
        if waiting is None or newest is None or not self._keeps_untrained:
            return
        if self._training._taken.is_certain:
            raise two_ahead(newest)
        self._leave_out_for(waiting)
        self._finish_batch()

    @property
    def _keeps_untrained(self) -> bool:
        """Whether the script has a batch of which no gradient was computed, and will train it now."""
        now = self._training._now
        if not self._training._taken.is_usual or not now.has_batch or now.is_counted:
            return False
        return not now.is_summed and not self._training._has_local

    def _end_of(self, asked: Asked) -> None:
        """The script has got all batches that it has asked for. It may still have to train the last one."""
        training = self._training
        self._check_one_waits(training._taken.waiting)
        self._has_last = self._keeps_untrained
        if (last := training._taken.take()) is not None:
            self._begin_batch(last)
            self._has_last = True
        training._asked.complete(asked, training.iteration + self._has_last)
        training._look_up_schedules()
        if self._has_last:
            self._loop = self
        else:
            training._samples_in_hand = 0
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
        training, now = self._training, self._training._now
        if self._has_last:
            self._has_last = False
            self._finish_batch()
            self._end()
            return
        if now.is_summed or training._has_local:
            self._count_iteration()
        elif now.has_batch and not now.is_counted:
            now.leave_out()
        if training._asked.break_ends_pass:
            rest, _ = training._stream.resumable(training._cursor, training.iteration)
            if training._cursor.is_inside or rest.is_inside:
                self._begin_pass(training._cursor.next_pass)
        training._asked.left(training.epoch, training.iteration)
        self._end()

    def _begin_pass(self, number: int) -> None:
        """What is left of the passes before this one, and what they owe, is not trained."""
        training, cursor = self._training, Cursor(number)
        left = training._stream.samples_before(cursor) - training._stream.samples_before(training._cursor)
        training._cursor, training._not_trained = cursor, training._not_trained + max(left, 0)
        training._stream.leave_passes(cursor)

    def _end(self) -> None:
        self._loop = None
        self._training._taken.begin_loop()
        self._training._now.end()
        self._training._observer.loop_ended(self._training.iteration)

    def settle(self, loss: Any) -> None:
        """Before the backward pass of `loss`: the batch that it is of becomes the one at hand.

        Raises TrainingError, on all workers, where that is not known or cannot be right.
        """
        training, taken, now = self._training, self._training._taken, self._training._now
        if not now.has_batch:
            return
        if taken.thread not in (None, threading.get_ident()):
            raise self._told_all(of_another_thread(now.batch))
        if not taken.is_open:
            return
        batches = taken.candidates(now.batch)
        older, newer = batches[-2:]
        number = training._batch_of(loss, [batch.data for batch in batches])
        if number is None:
            if not are_alike(older, newer):
                raise self._told_all(not_known(newer))
        elif number < len(batches) - 2:
            raise self._told_all(two_ahead(newer))
        elif taken.waiting is not None:
            taken.is_certain = number == len(batches) - 2
            if not taken.is_certain:
                self._leave_out_for(newer)
        elif number == len(batches) - 2:
            self._check_possible(newer)
            self._take_back(older)
        taken.left_out.clear()

    def _leave_out_for(self, newer: Batch) -> None:
        """The script was to train the batch at hand now, and goes on with the one after it."""
        taken = self._training._taken
        taken.is_usual, taken.waiting = False, None
        self._finish_batch()
        self._begin_batch(newer)

    def _check_possible(self, newer: Batch) -> None:
        """Raises TrainingError, on all workers, where the script must not take `newer` ahead."""
        training = self._training
        for is_so, where in (
            (isinstance(training._source, StreamSource), "with a stream or shards"),
            (training._comm.elastic is not None, "in an elastic job"),
            (training._computes_in_parts, "where batches are computed in parts (memory, at_once, rehearsals)"),
        ):
            if is_so:
                raise self._told_all(not_possible(newer, where))

    def _told_all(self, error: TrainingError) -> TrainingError:
        """`error`, once all workers know that this one does not go on."""
        self._training._announce("run.backward() for a batch that it cannot train")
        return error
