"""Where a training is: passes over the data, batch sizes, steps. A script may read most of it at any time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dynamix_ps.errors import TrainingError
from worker_hooks.sampling.sampler import Cursor

if TYPE_CHECKING:
    from dynamix_ps.messages import Plan
    from worker_hooks.data import Data
    from worker_hooks.iteration.in_flight import IterationInFlight
    from worker_hooks.observe.training_observer import TrainingObserver
    from worker_hooks.plans import Plans
    from worker_hooks.saved.checkpoint import Position


class TrainingPlace:
    """The place of one training.

    Attributes:
        iteration: the number of complete ones.
        cursor: the next sample that no batch has had.
        not_trained: samples of passes that the script has left.
        steps: of all optimizers.
    """

    def __init__(
        self, here: range, data: Data, plans: Plans, now: IterationInFlight, observer: TrainingObserver
    ) -> None:
        """`here`: the workers of this process."""
        self._here, self._data, self._plans, self._now, self._observer = here, data, plans, now, observer
        self.iteration = 0
        self.cursor = Cursor()
        self.not_trained = 0
        self.steps = 0

    def begin_at(self, start: Position) -> None:
        """Training begins at `start`."""
        self.iteration, self.cursor, self.not_trained = start.iteration, start.cursor, start.not_trained

    @property
    def plan(self) -> Plan:
        """In force in the present iteration."""
        return self._now.batch.plan if self._now.has_batch else self._plans.switch.newest_scheduled

    @property
    def sizes_here(self) -> tuple[int, ...]:
        """Planned batch sizes of the workers of this process."""
        return self.plan.batch_sizes[self._here.start : self._here.stop]

    @property
    def is_last_batch(self) -> bool:
        """Whether the present batch is the last one of its pass over the data."""
        return self._now.has_batch and self._now.batch.step.next.epoch > self._now.batch.step.cursor.epoch

    @property
    def position_in_pass(self) -> int:
        """Samples of all workers that the present pass over the data has had."""
        cursor = self.cursor
        return cursor.position - sum(one.samples for one in cursor.owed if one.epoch == cursor.epoch)

    @property
    def batches_per_pass(self) -> int:
        """Batches in a pass over the data if the plan stays as it is; 0 in the first pass over a stream."""
        return self._data.stream.batches_per_pass(self.plan.batch_sizes)

    @property
    def passes(self) -> float:
        """Passes over the data so far, the part of the present one too."""
        return self._data.stream.passes(self.cursor)

    def steps_planned(self, epochs: int) -> int:
        """`run.steps_planned(epochs)`."""
        if not self.batches_per_pass:
            raise TrainingError(
                "run.steps_planned() in the first pass over a stream, whose length is not known yet; name the end of "
                "training by run.batches(iterations=...)"
            )
        left = max(epochs - self.passes, 0.0) * self.batches_per_pass
        return self.iteration + math.ceil(round(left, 6))

    @property
    def trained_samples(self) -> int:
        """Samples of all workers so far."""
        return self._data.stream.samples_before(self.cursor) - self.not_trained

    @property
    def ratio(self) -> float:
        """Part of the training that is done, 0 to 1; NaN: where it ends is not known."""
        return self._observer.progress.trained_ratio(self.passes, self.iteration)

    @property
    def known_ratio(self) -> float:
        """The same. Raises TrainingError when the end of training is not known."""
        ratio = self.ratio
        if math.isnan(ratio):
            raise TrainingError(
                "run.progress is not known, because run.batches() or run.epochs() was called more than once; "
                "name the end of the whole training in one call"
            )
        return ratio

    def every(self, iterations: int) -> bool:
        """True when the number of complete iterations is a multiple of `iterations`."""
        return self.iteration > 0 and self.iteration % iterations == 0

    def every_samples(self, samples: int) -> bool:
        """True after the iteration in which the samples of all workers pass a multiple of `samples`."""
        if not self._now.has_batch:
            return False
        before = self._data.stream.samples_before(self._now.batch.step.cursor) - self.not_trained
        return before // samples < self.trained_samples // samples

    def leave_passes(self, number: int) -> None:
        """Training goes on with pass `number`: what is left of the passes before it, and owed, is not trained."""
        stream, cursor = self._data.stream, Cursor(number)
        left = stream.samples_before(cursor) - stream.samples_before(self.cursor)
        self.cursor, self.not_trained = cursor, self.not_trained + max(left, 0)
        stream.leave_passes(cursor)
