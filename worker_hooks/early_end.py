"""Batches whose backward pass ends early where a deadline passes, and what is owed of them.

    begin_batch     the batch gets parts if this worker was late lately   memory/batch_parts.py
    backward        it ends with the part in which the deadline passes    planning/deadline.py
    received        all workers learn from the sum how many samples each has processed; the others come again

The sum has fewer samples then. It counts as the mean over those that are in it.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from dynamix_ps.errors import TrainingError
from worker_hooks.iteration.in_flight import LeftRows
from worker_hooks.memory.batch_parts import BatchParts
from worker_hooks.planning.deadline import AUTO, Deadline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from worker_hooks.exchange.trailer import GlobalView
    from worker_hooks.training import Training


class EarlyEnd:
    """That of one training, whose cluster file asks for a deadline.

    Attributes:
        parts: of the batch in flight.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        asked = training.session.settings.config.policy.deadline
        self._deadline = Deadline(AUTO if asked == "auto" else float(asked))
        self._slowdown = training.session.settings.slowdown
        self._in_backward = self._has_sum = False
        tell = partial(training.session.degraded, "deadline")
        self.parts = BatchParts(lambda: self._deadline.late_lately and self._may_end(), self._is_over, tell)

    @staticmethod
    def not_possible(training: Training) -> str:
        """Why no batch of this training can end early; empty: some may."""
        workers = training.session.workers
        for is_so, why in (
            (workers.count == 1, "one worker waits for nobody"),
            (len(workers.here) > 1, "one process computes the batches of several workers"),
            (training.adapter.framework != "torch", f"batches in {training.adapter.framework} run to their end"),
            (
                training.data.is_stream,
                "samples of a stream or of shards have no numbers by which they could come again",
            ),
            (training.data.lengths is not None, "sizes are in tokens"),
        ):
            if is_so:
                return f"there is none: {why}"
        return ""

    def _may_end(self) -> bool:
        """Whether the batch at hand is the only one of its sum, and samples that it owes can come with others."""
        now, plans = self._training.now, self._training.plans
        if now.batches_due != 1 or self._training.sums.has_earlier:
            return False
        step = now.batch.step
        if step.next.epoch != step.cursor.epoch:
            return False
        left = sum(one.samples for one in step.next.coming(self._training.data.sampler.length))
        return left >= (2 + plans.lag) * sum(step.sizes)  # or an iteration would have these samples alone

    def begin_batch(self) -> None:
        """The script gets the next batch."""
        self.parts.begin()
        self._has_sum = False

    def check_first(self) -> None:
        """Raises TrainingError, on all workers, for a second sum of a batch of which some samples come again."""
        if not self._has_sum:
            return
        self.parts.refuse("a batch has several calls of run.backward()")
        if self._training.now.spent != self._training.now.batch.step.sizes:
            self._training.sums.announce("run.backward() again for a batch that has ended early")
            raise TrainingError(
                f"run.backward() again in iteration {self._training.now.batch.iteration}, whose first call has ended "
                "early: samples of this batch come again; set policy.deadline to off"
            )

    @contextmanager
    def backward(self) -> Iterator[None]:
        """The backward pass of `run.backward` runs in here."""
        now = self._training.now
        self._in_backward = now.units is None and now.reduction == "mean" and now.batches_due == 1
        if self.parts.number() > 1:
            if not self._in_backward:
                self.parts.refuse("run.backward(loss, weight=...), or for a sum or several batches, needs all rows")
            elif self._training.adapter.has_gradients():
                self.parts.refuse("gradients of the sum before are still there; call zero_grad() after every step")
        began_s = self._elapsed_s()
        try:
            yield
        finally:
            self._in_backward = False
        ended_s = self._elapsed_s()
        if rows := self.parts.rows_left:
            now.left = LeftRows(rows, (ended_s - began_s) * rows / (now.batch.samples - rows))
        self._deadline.computed(ended_s)

    def _is_over(self) -> bool:
        return self._in_backward and self._elapsed_s() > self._deadline.seconds

    def _elapsed_s(self) -> float:
        """Since the iteration began, with what an emulated speed adds."""
        watch = self._training.observer.watch
        return watch.own_so_far_s() + (self._slowdown - 1) * watch.compute_so_far_s()

    def received(self, view: GlobalView) -> None:
        """A sum is complete. Where a worker has ended early, all owe the rest of its samples.

        The same on all workers, so all prepare the same batches.
        """
        self._has_sum = True
        training, now = self._training, self._training.now
        present = view.present
        came_s = [view.lasted_s - view.waited_s[slot] for slot in present]
        self._deadline.see((now.batch.plan.version, *present), came_s)
        planned = now.sizes_due
        left = {slot: size - view.worker_samples[slot] for slot, size in enumerate(planned)}
        left = {slot: samples for slot, samples in left.items() if samples}
        if not left:
            return
        now.processed = view.worker_samples
        lag = training.plans.switch.lag
        training.data.stream.missed(now.batch.step, left, now.batch.iteration + 1 + lag)
        training.session.account.samples -= now.left.samples
        training.observer.ended_early(now.batch.iteration, left, sum(planned), tells=training.sums.leads)
