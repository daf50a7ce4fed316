"""Where a training is: passes over the data, batch sizes, progress. A script may read all of it at any time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dynamix_ps.errors import TrainingError
from worker_hooks.replicated_model import ReplicatedModel

if TYPE_CHECKING:
    from dynamix_ps.messages import Plan
    from worker_hooks.iteration import IterationInFlight
    from worker_hooks.learning_rate import LearningRate
    from worker_hooks.observe.training_observer import TrainingObserver
    from worker_hooks.workers import Workers


class PositionedModel(ReplicatedModel):
    """A model with a place in its training."""

    _now: IterationInFlight
    _observer: TrainingObserver
    _rate: LearningRate
    _workers: Workers
    _not_trained = 0  # samples of passes that the script has left

    @property
    def epoch(self) -> int:
        """Passes over the data set that are over."""
        return self._cursor.epoch

    @property
    def batch_size(self) -> int:
        """Planned batch size of this worker in the present iteration."""
        return sum(self._sizes_here)

    @property
    def _sizes_here(self) -> tuple[int, ...]:
        here = self._workers.here
        return self._plan.batch_sizes[here.start : here.stop]

    @property
    def is_last_batch(self) -> bool:
        """Whether the present batch is the last one of its pass over the data."""
        return self._now.has_batch and self._now.batch.step.next.epoch > self._now.batch.step.cursor.epoch

    @property
    def position_in_pass(self) -> int:
        """Samples of all workers that the present pass over the data has had."""
        cursor = self._cursor
        return cursor.position - sum(one.samples for one in cursor.owed if one.epoch == cursor.epoch)

    @property
    def samples_per_pass(self) -> int:
        """Samples of all workers in a pass over the data; 0 in the first pass over a stream."""
        return self._stream.length

    @property
    def planned_sizes(self) -> tuple[int, ...]:
        """Planned batch size of every worker in the present iteration."""
        return self._plan.batch_sizes

    @property
    def batches_per_pass(self) -> int:
        """Batches in a pass over the data if the plan stays as it is; 0 in the first pass over a stream."""
        return self._stream.batches_per_pass(self.planned_sizes)

    def steps_planned(self, epochs: int) -> int:
        """About how many iterations a training of so many passes over the data has, those so far too.

        It is for the sizes of the present plan: ask again where they have changed. Raises TrainingError in the first
        pass over a stream.
        """
        if not self.batches_per_pass:
            raise TrainingError(
                "run.steps_planned() in the first pass over a stream, whose length is not known yet; name the end of "
                "training by run.batches(iterations=...)"
            )
        left = max(epochs - self._stream.passes(self._cursor), 0.0) * self.batches_per_pass
        return self.iteration + math.ceil(round(left, 6))

    @property
    def _plan(self) -> Plan:
        """In force in the present iteration."""
        return self._now.batch.plan if self._now.has_batch else self._switch.newest_scheduled

    @property
    def _decided_rate(self) -> float:
        return self._rate.guard

    @property
    def _trained_samples(self) -> int:
        """Samples of all workers so far."""
        return self._stream.samples_before(self._cursor) - self._not_trained

    @property
    def progress(self) -> float:
        """Part of the training that is done, 0 to 1, for schedules. `run.batches()` says what the whole training is.

        Before `run.batches()` it is what it was when the checkpoint was saved, 0 without one. Raises TrainingError when
        the end of training is not known.
        """
        ratio = self._trained_ratio
        if math.isnan(ratio):
            raise TrainingError(
                "run.progress is not known, because run.batches() or run.epochs() was called more than once; "
                "name the end of the whole training in one call"
            )
        return ratio

    @property
    def _trained_ratio(self) -> float:
        return self._observer.progress.trained_ratio(self._stream.passes(self._cursor), self.iteration)

    def every(self, iterations: int) -> bool:
        """True when the number of complete iterations is a multiple of `iterations` (the same on all workers)."""
        return self.iteration > 0 and self.iteration % iterations == 0

    def every_samples(self, samples: int) -> bool:
        """True after the iteration in which the samples of all workers pass a multiple of `samples`.

        Unlike `every`, this comes as often with large batches as with small ones.
        """
        if not self._now.has_batch:
            return False
        before = self._stream.samples_before(self._now.batch.step.cursor) - self._not_trained
        return before // samples < self._trained_samples // samples
