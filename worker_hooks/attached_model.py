"""A model that takes part in a training of several workers: how it joins them, where it is, how it leaves.

training.py tells what happens between joining and leaving: the iterations.
"""

from __future__ import annotations

import atexit
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dynamix_ps.errors import TrainingError
from worker_hooks import failure
from worker_hooks.batches import BatchStream
from worker_hooks.checkpoint import Position, load_checkpoint, save_checkpoint
from worker_hooks.evaluation import evaluate_share
from worker_hooks.framework import Framework
from worker_hooks.iteration import IterationInFlight
from worker_hooks.learning_rate import LearningRate
from worker_hooks.observe.stall import StallWatch
from worker_hooks.observe.training_observer import TrainingObserver
from worker_hooks.plan_switch import PlanSwitch
from worker_hooks.sampler import Cursor, GlobalSampler
from worker_hooks.session import Session
from worker_hooks.start import check_dataset, check_frameworks, check_workers

_attached = itertools.count()  # several models in one process get keys of their own


class AttachedModel(Framework):
    """`rank`, `size`, `iteration` (complete ones) and `epoch` may be read at any time."""

    def __init__(self, dataset: Any, session: Session, batch_size: int, seed: int | None) -> None:
        comm, settings = session.comm, session.settings
        self.rank, self.size = comm.rank, comm.size
        self._session, self._comm, self._settings = session, comm, settings
        self._adaptive = settings.mode != "off"
        self.iteration = 0
        self._samples = 0  # of this worker, in complete iterations
        self._closed = False
        failure.exit_on_failure(self)

        prefix = f"dynamix.{next(_attached)}"
        check_frameworks(comm, f"{prefix}.frameworks", self.framework)
        self._exchange = self._make_exchange(prefix)
        self._evaluation_key = f"{prefix}.evaluation"
        comm.declare(self._evaluation_key)

        first_plan = settings.first_plan(self.size, batch_size)
        start = self._same_start(prefix, Position(0, Cursor(), first_plan))
        check_workers(start.plan, self.size)
        check_dataset(dataset, start.plan)
        self.iteration, self._cursor = start.iteration, start.cursor

        sampler = GlobalSampler(len(dataset), settings.seed if seed is None else seed)
        self._switch = PlanSwitch(start.plan, settings.prefetch)
        self._stream = BatchStream(dataset, self._fetch, sampler, self.rank, self._switch.plan_at, settings.prefetch)
        reference_batch = settings.reference_batch or first_plan.global_batch
        self._rate = LearningRate(settings.lr_rule, reference_batch, self.size, start.noise)
        self._now = IterationInFlight()
        self._applied_version = start.plan.version

        self._stall = StallWatch(self.rank, session.reporter, settings.timeouts)
        self._observer = TrainingObserver(
            self.rank, session.reporter, settings, self._exchange.bytes_per_iteration, start
        )
        self._watch = self._observer.watch
        session.start(start.plan, start.iteration, f"{self.framework} {self.framework_version}")
        if getattr(dataset, "degraded", None):  # the data set itself says that it is not what was asked for
            session.reporter.event("degraded", what="data", detail=dataset.degraded)
        atexit.register(self.close)

    def _same_start(self, prefix: str, position: Position) -> Position:
        """Give every worker rank 0's weights and optimizer, from a checkpoint if one is named; return its position."""
        if self.rank != 0:
            return self._restore(self._comm.broadcast(f"{prefix}.state", b""))
        if self._settings.resume:
            position = load_checkpoint(self._settings.resume, self._restore)
        self._comm.broadcast(f"{prefix}.state", self._pack(position))
        return position

    # -- where training is --------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Complete passes over the data set."""
        return self._cursor.epoch

    @property
    def batch_size(self) -> int:
        """Planned batch size of this worker in the present iteration."""
        plan = self._now.batch.plan if self._now.has_batch else self._switch.newest_scheduled
        return plan.batch_sizes[self.rank]

    @property
    def _trained_samples(self) -> int:
        """Samples of all workers so far."""
        return self._cursor.epoch * self._stream.length + self._cursor.position

    def every(self, iterations: int) -> bool:
        """True when the number of complete iterations is a multiple of `iterations` (the same on all workers)."""
        return self.iteration > 0 and self.iteration % iterations == 0

    def every_samples(self, samples: int) -> bool:
        """True after the iteration in which the samples of all workers pass a multiple of `samples`.

        Unlike `every`, this comes as often with large batches as with small ones.
        """
        if not self._now.has_batch:
            return False
        begin = self._now.batch.step.cursor
        before = begin.epoch * self._stream.length + begin.position
        return before // samples < self._trained_samples // samples

    # -- beside the iterations ----------------------------------------------------------------------------------------

    @contextmanager
    def paused(self) -> Iterator[None]:
        """`with run.paused():` around what is not training, so that it does not count as training time."""
        with self._observer.paused():
            yield

    def evaluate(
        self, dataset: Any, score: Callable[[Any, Any], Sequence[Any]], batch_size: int = 256
    ) -> tuple[float, ...]:
        """Means per sample over `dataset`, computed by all workers together, each on its share. Collective.

        `score(inputs, targets)` returns sums over a batch, first the number of correct ones, then the loss, then up
        to five more. The first two are recorded as accuracy and loss. Does not count as training time.
        """
        if not len(dataset):
            raise TrainingError("run.evaluate() got an empty data set, expected at least one sample")
        with self.paused():
            shares = self._switch.newest_scheduled.batch_sizes
            with self._inference():
                sums = evaluate_share(dataset, self._fetch, score, self._number, shares, self.rank, batch_size)
            sums = self._comm.total(self._evaluation_key, sums)
            samples = int(sums[0])
            values = (sums[1 : 1 + int(sums[-1]) // samples] / samples).tolist()
        if self.rank == 0:
            accuracy, loss = values[:2]
            self._observer.evaluated(self.iteration, self.epoch, accuracy, loss, samples, self._trained_samples)
        return tuple(values)

    def save(self, path: Path | str | None = None) -> None:
        """Write a checkpoint (rank 0; others return at once): model, optimizer, cursor, plan. Atomic.

        Default: in the run folder, `checkpoints/last.pt` (torch) or `last.npz` (MXNet). Does not count as training
        time.
        """
        if self.rank != 0:
            return
        if path is None:
            if self._session.folder is None:
                raise TrainingError("run.save() needs a path when there is no run folder")
            path = self._session.folder.checkpoints_dir / f"last{self.checkpoint_suffix}"
        with self.paused():
            plan, largest_lr = self._switch.newest_scheduled, self._observer.progress.largest_lr
            position = Position(self.iteration, self._cursor, plan, self._rate.noise, largest_lr)
            save_checkpoint(Path(path), self._pack(position))

    def close(self) -> None:
        """Leave the arbitrator, the run folder and the other workers. Also runs at exit. Collective."""
        if self._closed:
            return
        if self.size > 1 and self._now.is_incomplete:
            error = TrainingError(f"the script ended in the middle of iteration {self.iteration}")
            print(f"error: {error}, while the other workers wait for its gradients", file=sys.stderr)
            self.abandon(error)
            failure.exit_now(error.exit_code)
        self._closed = True
        self._observer.finished(self.iteration, self._samples)
        self._session.close()

    def abandon(self, error: BaseException) -> None:
        """Record why this worker fails; do not wait for the other workers."""
        self._closed = True
        self._session.abandon(error, self.iteration)
