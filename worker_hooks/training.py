"""Training with a batch size of its own on every worker, whatever the framework: what all hooks share.

The story of one iteration: `batches` hands out this worker's slice of the data (sampler.py), `backward` sends the
weighted gradients together with a tail (tail.py), the optimizer's step first waits for their sum (`synchronize`); the
tail's vote says which plan is next (plan_switch.py), and every few iterations a record of what happened goes to the
reporter (window.py, reporter.py). The training thread never waits for anything but its batch and the sum.

What a framework adds: gradients and their sum, its optimizer's step and rate, its arrays, its checkpoints.
"""

from __future__ import annotations

import atexit
import itertools
import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.errors import DIVERGED, TrainingError
from dynamix_ps.messages import Plan
from dynamix_ps.metrics.noise import estimate
from worker_hooks import failure
from worker_hooks.batches import Batch, BatchStream
from worker_hooks.checkpoint import Position, load_checkpoint, save_checkpoint
from worker_hooks.evaluation import evaluate_share
from worker_hooks.exchange import GradientExchange
from worker_hooks.learning_rate import LearningRate
from worker_hooks.observe.stall import StallWatch
from worker_hooks.observe.stopwatch import Stopwatch
from worker_hooks.observe.training_progress import Horizon
from worker_hooks.observe.window import Iteration, WindowMeter
from worker_hooks.plan_switch import PlanSwitch
from worker_hooks.sampler import Cursor, GlobalSampler
from worker_hooks.session import Session
from worker_hooks.start import check_dataset, check_frameworks, check_workers
from worker_hooks.trailer import Contribution, GlobalView

NORM_EVERY = 10  # iterations; gradient norms cost a pass over all gradients and change slowly (chosen by us)

_attached = itertools.count()  # several models in one process get keys of their own


class Training(ABC):
    """One model in training. `rank`, `size`, `iteration` (complete ones) and `epoch` may be read at any time."""

    framework: ClassVar[str]
    framework_version: ClassVar[str]
    checkpoint_suffix: ClassVar[str]

    def __init__(self, dataset: Any, session: Session, batch_size: int, seed: int | None) -> None:
        comm, settings = session.comm, session.settings
        self.rank, self.size = comm.rank, comm.size
        self.iteration = 0
        self._session, self._comm, self._settings = session, comm, settings
        self._adaptive = settings.mode != "off"
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
        self._horizon = Horizon(start.largest_lr)
        self._watch = Stopwatch()
        self._meter = WindowMeter(self.rank, settings.window, self._exchange.bytes_per_iteration)
        self._stall = StallWatch(self.rank, session.reporter, settings.timeouts)

        self._batch: Batch | None = None  # in work since `batches` handed it out
        self._sent = False
        self._view: GlobalView | None = None  # what the sum of this iteration said
        self._view_before: GlobalView | None = None
        self._loss = self._correct = self._grad_sq = self._global_grad_sq = math.nan
        self._applied_version = start.plan.version
        self._samples = 0
        self._warm_up = start.iteration  # slowed down by all that happens once, so it is in no window
        self._training_began_s: float | None = None
        session.start(start.plan, start.iteration, f"{self.framework} {self.framework_version}")
        if getattr(dataset, "degraded", None):  # the data set itself says that it is not what was asked for
            session.reporter.event("degraded", what="data", detail=dataset.degraded)
        atexit.register(self.close)

    # -- what a framework adds ----------------------------------------------------------------------------------------

    @abstractmethod
    def _make_exchange(self, prefix: str) -> GradientExchange:
        """For this model; declares its keys."""

    @abstractmethod
    def _pack(self, position: Position) -> bytes:
        """Model, optimizer and position, bit for bit."""

    @abstractmethod
    def _restore(self, packed: bytes) -> Position:
        """Put what `_pack` made into model and optimizer. Raises CheckpointError when it does not fit."""

    @abstractmethod
    def _fetch(self, dataset: Any, indices: NDArray[np.int64]) -> Any:
        """These samples as one batch; where there are none, the first sample, which will count for nothing."""

    @abstractmethod
    def _propagate(self, loss: Any) -> None:
        """The backward pass."""

    @abstractmethod
    def _number(self, value: Any) -> float:
        """Of one of the framework's scalars, or of a plain one."""

    @abstractmethod
    def _script_lr(self) -> float:
        """The learning rate as the script has set it, without any factor."""

    @abstractmethod
    def _inference(self) -> AbstractContextManager[None]:
        """The model for evaluation, without gradients."""

    # -- start --------------------------------------------------------------------------------------------------------

    def _same_start(self, prefix: str, position: Position) -> Position:
        """Make weights and optimizer rank 0's on every worker, from its checkpoint if one is given; where it stands."""
        if self.rank != 0:
            return self._restore(self._comm.broadcast(f"{prefix}.state", b""))
        if self._settings.resume:
            position = load_checkpoint(self._settings.resume, self._restore)
        self._comm.broadcast(f"{prefix}.state", self._pack(position))
        return position

    # -- the loop ---------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Complete passes over the data set."""
        return self._cursor.epoch

    @property
    def batch_size(self) -> int:
        """Planned batch size of this worker in the iteration at hand."""
        return (self._batch.plan if self._batch else self._switch.newest_scheduled).batch_sizes[self.rank]

    def every(self, iterations: int) -> bool:
        """True when the number of complete iterations is a multiple of `iterations` (the same on all workers)."""
        return self.iteration > 0 and self.iteration % iterations == 0

    def every_samples(self, samples: int) -> bool:
        """True after the iteration in which the samples of all workers pass a multiple of this.

        Unlike `every`, this comes as often with large batches as with small ones.
        """
        if self._batch is None:
            return False
        length = self._stream.length
        before, now = (at.epoch * length + at.position for at in (self._batch.step.cursor, self._cursor))
        return before // samples < now // samples

    def batches(self, epochs: int | None = None, iterations: int | None = None) -> Iterator[Any]:
        """This worker's batches until `epochs` passes or `iterations` iterations are complete in all.

        The end named in the first call is taken for the end of training, before which the policy may want larger
        batches; a second call says that it was none.

        A worker whose share is empty still gets one sample to run on, and its gradient counts for nothing.
        """
        if epochs is None and iterations is None:
            raise TrainingError("run.batches() needs epochs=... or iterations=..., got neither")
        if self._training_began_s is None:
            self._training_began_s = time.perf_counter()
        self._horizon.ask(epochs, iterations)
        self._watch.begin()
        for batch in self._stream.run(self._cursor, self.iteration, epochs, iterations):
            if batch.plan.version != self._applied_version:
                self._announce(batch.plan)
            self._batch, self._sent, self._view_before, self._view = batch, False, self._view, None
            self._watch.batch_ready()
            yield batch.data
            if self.iteration == batch.iteration:
                raise TrainingError("the loop went on without optimizer.step(); call it once for every batch")
            if self._adaptive:
                self._record(batch)
        self._batch = None

    def backward(self, loss: Any, correct: Any = None) -> None:
        """Backward pass of `loss`, the *mean* over this batch, and start of the gradient sum.

        `correct` is the number of correctly classified samples of the batch, if there is such a thing; it gives
        the policy the batch accuracy.
        """
        batch = self._batch
        if batch is None or self._sent:
            raise TrainingError("run.backward() belongs inside `for ... in run.batches(...)`, once per batch")
        self._exchange.begin(batch.samples, measure_norm=self._measures_norms(batch))
        if batch.samples:
            self._propagate(loss)
        self._loss = self._number(loss) if batch.samples else 0.0
        self._correct = math.nan if correct is None else self._number(correct) if batch.samples else 0.0
        if self._settings.slowdown > 1:  # emulated speed, where CPU quotas are not permitted
            time.sleep(self._watch.compute_so_far_s() * (self._settings.slowdown - 1))
        voted = self._switch.vote(self._session.newest_plan())

        def contribute(grad_sq: float) -> Contribution:
            self._grad_sq = grad_sq
            loss_sum, waited_s = self._loss * batch.samples, self._watch.blocked_s
            before = self._global_grad_sq, self._watch.lasted_s  # still of the iteration before
            return Contribution(batch.samples, loss_sum, self._correct, grad_sq, voted.version, waited_s, *before)

        self._exchange.send_rest(contribute)
        self._sent = True
        self._session.reporter.progress(batch.iteration + 1)

    def synchronize(self) -> None:
        """Wait for the sum, so that gradients are the global ones. Only needed to clip or read them before the
        optimizer's step, which otherwise does it."""
        batch = self._batch
        if batch is None or not self._sent:
            raise TrainingError("optimizer.step() without run.backward(loss) in this iteration")
        if self._view is not None:
            return
        with self._watch.blocked():
            view = self._exchange.receive(lambda waited_s: self._stall.waiting(batch.iteration, waited_s))
        if view.broken_ranks:
            named = ", ".join(f"worker {rank}" for rank in view.broken_ranks)
            raise TrainingError(
                f"the loss of {named} {DIVERGED} {self.iteration} (epoch {self.epoch}); "
                "no weight was changed by it: lower the learning rate, or look at the data of that worker"
            )
        if self._adaptive:
            self._see_noise(view)
            self._global_grad_sq = self._exchange.squared_norm() if self._measures_norms(batch) else math.nan
            self._switch.decide(batch.iteration, view.agreed_version)
        self._view = view

    def _measures_norms(self, batch: Batch) -> bool:
        every = self._norm_every
        return self._adaptive and batch.iteration % every == 1 % every  # so that the first window knows them

    @property
    def _norm_every(self) -> int:
        return min(NORM_EVERY, self._settings.window)

    def _see_noise(self, view: GlobalView) -> None:
        """The noise of the iteration before, from what tails told alone: the same bits on every worker."""
        before = self._view_before
        if before is not None and math.isfinite(view.global_sq):
            noise = estimate(before.worker_samples, before.grad_sq, view.global_sq)
            self._rate.see(noise, self._norm_every)

    def _rate_factor(self) -> float:
        """On the script's learning rate, for the samples that were really summed: fewer at the end of an epoch.

        A step of full length along the gradient of fewer samples has more noise than the others.
        """
        assert self._view is not None
        return self._rate.factor(max(self._view.samples, 1))

    def _stepped(self) -> None:
        """The optimizer has taken its step: an iteration is complete."""
        assert self._batch is not None
        self.iteration += 1
        self._samples += self._batch.samples
        self._cursor = self._batch.step.next
        every = self._settings.checkpoint_every
        if every and self.every(every):
            self.save()

    # -- plans ------------------------------------------------------------------------------------------------------

    def _announce(self, plan: Plan) -> None:
        self._applied_version = plan.version
        self._session.reporter.begin_window()
        self._session.reporter.event(
            "plan_applied",
            version=plan.version,
            iteration=self.iteration,
            batch_sizes=list(plan.batch_sizes),
            lr_factor=self._rate.factor(plan.global_batch),
        )

    # -- records ----------------------------------------------------------------------------------------------------

    def _record(self, batch: Batch) -> None:
        assert self._view is not None
        times = self._watch.end()
        if batch.iteration == self._warm_up:
            self._session.reporter.begin_window()
            return
        epochs = self._cursor.epoch + self._cursor.position / self._stream.length
        record = self._meter.add(
            Iteration(
                number=batch.iteration,
                plan_version=batch.plan.version,
                batch_size=batch.plan.batch_sizes[self.rank],
                samples=batch.samples,
                times=times,
                loss=self._loss,
                correct=self._correct,
                grad_sq=self._grad_sq,
                global_grad_sq=self._global_grad_sq,
                view=self._view,
                epoch=epochs,
                trained_ratio=self._horizon.trained_ratio(epochs, self.iteration),
                lr_ratio=self._horizon.lr_ratio(self._script_lr()),
                stalled=self._watch.blocked_s >= self._settings.timeouts.stall_warn_s,
            )
        )
        if record is not None:
            self._session.reporter.window(record)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """`with run.paused():` around what is not training, so that it does not count as training time."""
        reporter = self._session.reporter
        reporter.event("paused")
        with self._watch.paused():
            yield
        reporter.event("resumed")
        reporter.begin_window()

    # -- evaluation, checkpoints, end ---------------------------------------------------------------------------------

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
            self._session.reporter.event(
                "evaluation",
                iteration=self.iteration,
                epoch=self.epoch,
                accuracy=values[0],
                loss=values[1],
                samples=samples,
                trained_samples=self._cursor.epoch * self._stream.length + self._cursor.position,
                trained_s=self._trained_s() - self._watch.pauses_s,
            )
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
            plan, largest_lr = self._switch.newest_scheduled, self._horizon.largest_lr
            position = Position(self.iteration, self._cursor, plan, self._rate.noise, largest_lr)
            save_checkpoint(Path(path), self._pack(position))

    def close(self) -> None:
        """Say good-bye: to the arbitrator, the run folder and the other workers. Also runs at exit. Collective."""
        if self._closed:
            return
        if self.size > 1 and self._batch is not None and self.iteration == self._batch.iteration:
            error = TrainingError(f"the script ended in the middle of iteration {self.iteration}")
            print(f"error: {error}, while the other workers wait for its gradients", file=sys.stderr)
            self.abandon(error)
            failure.exit_now(error.exit_code)
        self._closed = True
        self._session.reporter.event(
            "finished", iterations=self.iteration, samples=self._samples, train_s=self._trained_s()
        )
        self._session.close()

    def _trained_s(self) -> float:
        """Since training began, pauses included."""
        return 0.0 if self._training_began_s is None else time.perf_counter() - self._training_began_s

    def abandon(self, error: BaseException) -> None:
        """Record why this worker fails; the other workers are not waited for."""
        self._closed = True
        self._session.abandon(error, self.iteration)
