"""Training with a batch size of its own on every worker, whatever the framework.

The story of one iteration:

1. `batches` hands out this worker's slice of the data (loops.py, sampler.py, batches.py).
2. `backward` (backward.py) sends the weighted gradients (exchange.py) with a trailer behind them (trailer.py), and
   waits for the sum. The trailer proves that all workers do the same with the same weights (sums.py). Its votes say
   which plan is next (plan_switch.py).
3. The optimizer's step uses a learning rate that follows the samples in the sum and the plan (learning_rate.py).
4. Every few iterations a record of what happened goes to the reporter (observe/).

iteration.py knows which of these steps may come next. The training thread waits for nothing but its batch and the sum.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from dynamix_ps.errors import DynamixError
from worker_hooks.backward import Backward
from worker_hooks.checkpoints import Checkpoints
from worker_hooks.ending import TrainingEnd
from worker_hooks.evaluator import Evaluator
from worker_hooks.gathers import Gathers
from worker_hooks.iteration.in_flight import IterationInFlight
from worker_hooks.loading.batches import Batch
from worker_hooks.loading.script_errors import BatchInHand
from worker_hooks.loops import Loops
from worker_hooks.memory.memory_ceiling import MemoryCeiling
from worker_hooks.observe.stopwatch import NewestSum
from worker_hooks.observe.training_observer import TrainingObserver
from worker_hooks.plans import Plans
from worker_hooks.process import failure
from worker_hooks.process.termination import TERMINATION
from worker_hooks.progress import TrainingPlace
from worker_hooks.replicas import Replicas
from worker_hooks.resuming import tell_where_it_goes_on
from worker_hooks.sums import Sums

if TYPE_CHECKING:
    from pathlib import Path

    from worker_hooks.adapter import Adapter
    from worker_hooks.data import Data
    from worker_hooks.membership_changes import MembershipChanges
    from worker_hooks.memory.memory_ceiling import WorkerMemory
    from worker_hooks.saved.checkpoint import Position
    from worker_hooks.session import Session


class Training:
    """One training: its models, optimizers and data, and the parts that look after them.

    Attributes:
        adapter: models and optimizers, as their framework has them.
        data: the samples, and who gets which.
        now: the iteration in flight.
        plans: sizes, and the learning rate that goes with them.
        progress: where the training is.
        sums: of gradients, in which all workers agree.
        gathers: rows of all workers, for losses over pairs.
        replicas: parameters, the same on all workers.
        loops: those of the script, over passes and batches.
        backward: the backward pass, and the sum that follows.
        evaluator: what is measured beside the iterations.
        checkpoints: states, saved and put back.
        ending: how it ends by SIGTERM.
        membership: who enters and leaves; none: the job is not elastic.
        observer: what it tells about itself.
        memory: what fits into that of this worker.
        in_hand: samples of the batch that the script has.
        has_begun: the script has begun a loop over batches.
    """

    membership: MembershipChanges | None = None
    memory: WorkerMemory
    has_begun = is_closed = False

    def __init__(self, adapter: Adapter, data: Data, session: Session, prefix: str) -> None:
        """`prefix`: of the keys of this training."""
        self.adapter, self.data, self.session = adapter, data, session
        here = session.workers.here
        self.now = IterationInFlight()
        self.plans = Plans(session)
        watch = session.make_watch(self._newest_sum)
        self.observer = TrainingObserver(here, session.reporter, session.account, session.settings, watch)
        self.progress = TrainingPlace(here, data, self.plans, self.now, self.observer)
        self.sums = Sums(session, adapter, data, self.plans, self.progress, watch, prefix)
        self.replicas = Replicas(session, adapter, data, self.sums)
        self.loops, self.backward = Loops(self), Backward(self)
        self.evaluator = Evaluator(session, adapter, data, self.plans, self.progress, self.sums, self.observer)
        self.checkpoints, self.ending = Checkpoints(self), TrainingEnd(self)
        if session.comm.elastic is not None:
            from worker_hooks.membership_changes import MembershipChanges

            self.membership = MembershipChanges(self)
        self.in_hand = BatchInHand()
        failure.exit_on_failure(self)

    # -- begin and end ------------------------------------------------------------------------------------------------

    @property
    def framework_text(self) -> str:
        """Name and version."""
        return f"{self.adapter.framework} {self.adapter.framework_version}"

    def open_sums(self) -> None:
        """Declare the sums, once parameters are laid out. At the same place on all workers."""
        self.sums.open()
        self.gathers = Gathers(self.sums, self.session.comm, self.session.workers)
        self.sums.before_sum = self.gathers.before_sum
        self.evaluator.declare()

    def begin_at(self, start: Position) -> None:
        """Let training begin at `start`. Raises TrainingError if that is no place in this training."""
        self.data.begin_at(start, self.plans, self._report_reading)
        self.progress.begin_at(start)
        self.plans.begin_at(start, self.data.size)
        if self.membership is not None:
            self.membership.begin_at()
        self.loops.begin_at(start.epochs_begun)
        self.observer.begin_at(start, self.data.size)
        self.checkpoints.begin_at(start)
        self.adapter.begin_at(start.reference_batch)
        account = self.session.account
        account.iterations = max(account.iterations, start.iteration)

    def attached(self, start: Position, file: Path | None) -> None:
        """Every part is ready to train from `start` on, which `file` had: announce this, and watch the script."""
        session, settings, sums = self.session, self.session.settings, self.sums
        session.start(self.progress.sizes_here, start.iteration, self.framework_text, sums.follows)
        self.checkpoints.number = session.account.trainings
        if file is not None:
            tell_where_it_goes_on(self, start, file)
        if detail := getattr(self.data.source.dataset, "degraded", None):  # it says that it is not what was asked for
            session.reporter.event("degraded", what="data", detail=detail)
        if settings.config.mode != "off" and self.plans.lag >= settings.config.window and sums.leads:
            session.degraded(
                "plans",
                f"{self.plans.lag} batches are prepared ahead and a window has {settings.config.window} iterations, so "
                "a plan shows only after the next decision; set a larger window, or let the loader prefetch less",
            )
        if sums.leads and (reason := self.backward.not_late_because()):
            session.degraded("overlap", reason)
        self.memory = self._limited_memory()
        atexit.register(self.close)
        TERMINATION.watch(self.ending)
        if self.membership is not None:
            TERMINATION.notice_usr1()
        self.adapter.attached(self)

    def _report_reading(self) -> None:
        """All workers tell what they have read of a stream. Collective."""
        if self.session.comm.size == 1:
            self.data.told_alone()
        else:
            with self.sums.watch.blocked():
                self.sums.announce("for the next batch of a stream")

    def _limited_memory(self) -> WorkerMemory:
        """What fits into the memory of this worker, as far as the settings say."""
        settings, rank = self.session.settings, self.session.workers.here.start
        at_once = settings.at_once[rank] if rank < len(settings.at_once) else None
        limit = None if at_once is None else max(at_once // self.data.largest_sample, 1)
        ceiling = MemoryCeiling(limit, settings.config.memory == "auto")
        memory = self.adapter.make_memory(ceiling, partial(self.session.degraded, "memory"), self)
        if self.data.lengths is not None:
            memory.tokens_at_once = at_once
        return memory

    @property
    def computes_in_parts(self) -> bool:
        """Whether calls of the model are divided, and so must know which batch they are of."""
        return self.memory.ceiling.is_needed or len(self.session.workers.here) > 1

    @property
    def is_training(self) -> bool:
        """Whether the script has begun its loop over batches, and the training is not over."""
        return self.has_begun and not self.is_closed

    def begin(self) -> None:
        """The script begins its loop over batches: from now on the place is what the iterations make it."""
        if self.has_begun:
            return
        self.has_begun = True
        self.checkpoints.began()
        if not self.sums.follows:
            self.session.connect(self.plans.switch.held, self.work())

    def work(self) -> str:
        """Digest of what this worker computes, and on what; empty where nobody remembers its speed."""
        if not self.session.settings.config.policy.remember:
            return ""
        from worker_hooks.process.work import work_digest

        digest = work_digest(self.adapter.parameters.described())
        if not digest and self.sums.leads:
            self.session.degraded("remembered speeds", "none: the script is no file that a later run could be of")
        return digest

    def close(self) -> None:
        """`run.close()`. Also runs at exit."""
        if self.is_closed:
            return
        self.loops.close()
        self._tell_missed_ends()
        self.is_closed = True
        atexit.unregister(self.close)
        self.now.end()
        try:
            if not self.session.comm.left:
                self.sums.announce("run.close(), or its script has ended,")
        except DynamixError as error:
            print(f"error: {error}", file=sys.stderr)
            self.abandon(error)
            failure.exit_now(error.exit_code)
        if 0 < self.checkpoints.went_on_at == self.progress.iteration:
            print("note: nothing was left to train: the script asks for no more iterations", file=sys.stderr)
        self.adapter.detach()
        self.data.close()
        self.sums.exchange.close()
        if self.membership is not None:
            self.membership.close()
        failure.forget(self)
        TERMINATION.forget(self.ending)
        account = self.session.account
        account.plan, account.reference_batch = self.plans.switch.newest_scheduled, self.plans.reference_batch
        self.session.close()

    def _tell_missed_ends(self) -> None:
        """Where training has come to its end, and schedules of the script have not."""
        ratio = self.progress.ratio
        if self.sums.leads and not self.loops.asked.was_left and not ratio < 1:  # NaN: the end is not known
            for sentence in self.adapter.missed_ends(self.progress.cursor.epoch):
                self.session.degraded("learning rate", sentence)

    def abandon(self, error: BaseException) -> None:
        """Record why this worker fails; do not wait for the other workers. The process is to end."""
        TERMINATION.failing()
        self.is_closed = True
        self.session.abandon(error, self.progress.iteration)

    def explained(self, error: BaseException) -> BaseException:
        """`error`, or one that says what to do about it."""
        session, progress = self.session, self.progress
        where = f"worker {session.workers.here.start} is out of memory in iteration {progress.iteration}"
        return self.in_hand.explained(
            error, where, session.settings.config.memory, self.data.largest_sample, self.adapter.survives_lack_of_memory
        )

    # -- one iteration ------------------------------------------------------------------------------------------------

    def take_back(self, batch: Batch) -> None:
        """The script trains `batch`, which has counted as left out, and has the one at hand ahead."""
        newer = self.now.batch
        self.now.take_back(batch)
        self.progress.iteration, self.progress.cursor = batch.iteration, batch.step.cursor
        self.session.account.samples -= batch.size
        self.in_hand.samples = batch.samples
        self.sums.weigh(self.now)
        self.plans.take_ahead(1)
        self.loops.taken.goes_back(newer)

    def begin_batch(self, batch: Batch) -> None:
        """Everything before the script gets `batch`."""
        self.evaluator.check_own_weights("a loop over batches")
        if self.membership is not None:
            self.membership.admit(batch.iteration)
        if batch.plan.version != self.plans.applied:
            self.plans.applied = batch.plan.version
            rate = self.plans.rate.step(batch.plan.global_batch)
            self.observer.plan_applied(batch.plan, self.progress.iteration, rate.factor)
        self.replicas.follow_parameters(before_forward=True)
        self.now.begin(batch)
        self.in_hand.take(batch.samples)
        self.sums.begin_batch(self.now)
        if self.plans.guard is not None and not self.sums.has_earlier:
            self.plans.guard.before_batch(self.progress.iteration, self.replicas.layouts, self._copy_state)
        self.observer.watch.batch_ready()
        self.adapter.batch_begun()

    def _copy_state(self) -> Callable[[], None]:
        return self.adapter.copy_state(self.checkpoints.position, self.checkpoints.registered.values())

    def finish_batch(self) -> None:
        """The script asks for the next batch."""
        now = self.now
        self.count_iteration()
        self.observer.batch_complete(self.progress.iteration)
        if now.is_summed:
            pushed, passes = self.sums.exchange.bytes_per_iteration, self.progress.passes
            self.in_hand.fitted(now.batch.samples)
            at_once, rate = self.memory.at_once, self.adapter.script_lr()
            closed = self.observer.iteration_complete(now, pushed, passes, rate, at_once)
            if closed and self.plans.own_size is not None:
                self.plans.own_size.window_over(closed, self.plans.switch.newest_scheduled)
        self.checkpoints.save_when_due()
        self.ending.end_when_told()
        self.adapter.batch_finished()

    def count_iteration(self) -> None:
        """The iteration is complete: with the first step after its sum, or when the script goes on without one."""
        now = self.now
        if not now.has_batch or now.is_counted:
            return
        if not now.is_summed and not self.sums.has_of_batch:
            now.leave_out()
            self.loops.taken.left_out.append(now.batch)
        now.is_counted = True
        self.progress.iteration += 1
        self.session.account.samples += now.batch.size
        self.progress.cursor = now.batch.step.next

    def _newest_sum(self) -> NewestSum:
        return NewestSum(self.now.spent, self.progress.passes, self.sums.exchange.bytes_per_iteration)

    def before_step(self, optimizer: int = 0) -> float:
        """Check that the gradients are global; return the factor on the script's learning rate for the coming step.

        The factor is for the samples that were really summed. There are fewer at the end of an epoch, and a step of
        full length along their noisier gradient would do harm.
        """
        self.evaluator.check_own_weights("optimizer.step()")
        now = self.now
        now.rate = self.plans.rate.step(now.check_step(optimizer).batch_size)
        return now.rate.factor

    def after_step(self, optimizer: int = 0) -> None:
        """Optimizer number `optimizer` has taken its step."""
        now = self.now
        if now.rolled_back and self.plans.guard is not None:
            self.plans.guard.put_back()
        now.stepped(optimizer)
        self.progress.steps += 1
        self.count_iteration()
        self.observer.watch.stepped()
        assert now.sum is not None
        self.adapter.stepped(optimizer, now.sum.batch_size, self.progress.steps)
