"""Training with a batch size of its own on every worker, whatever the framework: what all hooks share.

The story of one iteration:

1. `batches` hands out this worker's slice of the data (sampler.py, batches.py).
2. `backward` sends the weighted gradients (exchange.py) with a trailer behind them (trailer.py), and waits for the sum.
   The trailer proves that all workers do the same with the same weights (agreement.py). Its votes say which plan is
   next (plan_switch.py).
3. The optimizer's step uses a learning rate that follows the samples in the sum and the plan (learning_rate.py).
4. Every few iterations a record of what happened goes to the reporter (observe/).

iteration.py knows which of these steps may come next. The training thread waits for nothing but its batch and the sum.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator
from typing import Any

from dynamix_ps.errors import DIVERGED, TrainingError
from dynamix_ps.metrics.noise import estimate
from worker_hooks.agreement import GRADIENTS, GRADIENTS_OF_SUMS, WEIGHTED_GRADIENTS, name_workers
from worker_hooks.batches import Batch
from worker_hooks.loops import Loops
from worker_hooks.reduction import Kind, check
from worker_hooks.resumable_model import ResumableModel
from worker_hooks.session import Session
from worker_hooks.termination import TERMINATION
from worker_hooks.trailer import Contribution, GlobalView
from worker_hooks.units import factor_after_sum, units_or_invalid, weight_before_sum

NORM_EVERY = 10  # iterations; gradient norms cost a pass over all gradients and change slowly (chosen by us)


class Training(ResumableModel):
    """One training: its models, optimizers and data."""

    _weight = 0.0  # of gradients of the newest batch
    _has_earlier = False  # gradients of earlier batches are in no sum yet

    def __init__(
        self, data: Any, session: Session, batch_size: int | None, seed: int | None, lengths: Any = None
    ) -> None:
        super().__init__(data, session, batch_size, seed, lengths)
        self._loops = Loops(
            self, self._begin_batch, self._finish_batch, self._count_iteration, take_back=self._take_back
        )

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of `count` passes over the data, from 0, as `range(count)`; `batches()` inside gives one pass.

        Each call has passes of its own: a second call trains `count` more. After a resume a call begins with the pass
        at hand, and calls whose passes are complete give nothing.

        A pass ends where the script leaves the loop over its batches by `break`: the next one begins at its beginning,
        and so does a resume from a checkpoint that is saved after the loop. `break` at the same place on all workers.
        """
        return self._loops.epochs(count)

    def batches(self, epochs: int | None = None, iterations: int | None = None) -> Iterator[Any]:
        """This worker's batches, until `epochs` passes or `iterations` iterations are complete in all.

        If the limit was already reached, training runs for that many more: `for epoch in range(3):` with
        `run.batches(epochs=1)` trains three passes, as `run.batches(epochs=epoch + 1)` does. Inside `run.epochs()` no
        limit is needed.

        A new call goes on in the middle of a pass if the one before came to its limit there, or was left by `break`.
        Where both ask for one pass, as in both of these loops, it begins a new pass after a `break`.

        The first call tells the policy where training ends; near the end it may want larger batches and a lower rate.
        A second call tells it that the end is unknown, and so does `epochs=1`, with which loops over passes begin: for
        a training of one pass, name the end by `run.epochs(1)`.

        A script may take a batch before it trains the one before, such as to copy it to a device; not two. A batch
        that is not trained is left out.

        A worker whose share is empty still gets two samples to run on, and their gradient counts for nothing.
        """
        return self._loops.batches(epochs, iterations)

    def _take_back(self, batch: Batch) -> None:
        """The script trains `batch`, which has counted as left out, and has the one at hand ahead."""
        now, newer, before = self._now, self._now.batch, self._weight
        now.take_back(batch)
        self.iteration, self._cursor = batch.iteration, batch.step.cursor
        self._session.account.samples -= batch.size
        self._samples_in_hand, self._weight = batch.samples, self._reduction.weight(now)
        if self._has_earlier and before != self._weight:
            self._exchange.carry(before, self._weight)
        self._switch.lag = self._lag = self._lag + 1 - self._taken.lag  # plans are for batches that are not taken yet
        self._taken.lag = 1
        self._taken.goes_back(newer)

    def _begin_batch(self, batch: Batch) -> None:
        """Everything before the script gets `batch`."""
        self._check_own_weights("a loop over batches")
        self._admit(batch.iteration)
        if batch.plan.version != self._applied_version:
            self._applied_version = batch.plan.version
            rate = self._rate.step(batch.plan.global_batch)
            self._observer.plan_applied(batch.plan, self.iteration, rate.factor)
        self._follow_parameters(before_forward=True)
        now, before = self._now, self._weight
        now.begin(batch)
        self._samples_before, self._samples_in_hand = self._samples_in_hand, batch.samples
        self._weight = self._reduction.weight(now)
        self._has_earlier = self._exchange.has_local
        if self._guard is not None and not self._has_earlier:
            self._guard.before_batch(self.iteration, self._layouts, self._copy_state)
        if self._has_earlier and before != self._weight:
            self._exchange.carry(before, self._weight)
        self._watch.batch_ready()

    def _finish_batch(self) -> None:
        """The script asks for the next batch."""
        self._count_iteration()
        self._observer.batch_complete(self.iteration)
        if self._now.is_summed:
            pushed, passes = self._exchange.bytes_per_iteration, self._stream.passes(self._cursor)
            self._largest_batch = max(self._largest_batch, self._now.batch.samples)
            at_once, rate = self._memory.at_once, self._script_lr()
            closed = self._observer.iteration_complete(self._now, pushed, passes, rate, at_once)
            if closed and self._own_size is not None:
                self._own_size.window_over(closed, self._switch.newest_scheduled)
        self._save_when_due()
        self._end_when_told()

    def _count_iteration(self) -> None:
        """The iteration is complete: with the first step after its sum, or when the script goes on without one."""
        now = self._now
        if not now.has_batch or now.is_counted:
            return
        if not now.is_summed and not self._has_local:
            now.leave_out()
            self._taken.left_out.append(now.batch)
        now.is_counted = True
        self.iteration += 1
        self._session.account.samples += now.batch.size
        self._cursor = now.batch.step.next

    def backward(self, loss: Any, correct: Any = None, weight: Any = None, reduction: Kind = "mean") -> None:
        """Backward pass of `loss`, the *mean* over this batch; afterwards gradients are those of the global batch.

        Gradients that `loss.backward()` has added before, in this batch or in earlier ones since the last sum, are
        part of it. `loss` may be scaled by a torch GradScaler.

        `correct` is the number of correctly classified samples of the batch, if there is such a thing; it gives
        the policy the batch accuracy.

        `weight` is the number of units, such as tokens, that `loss` is the mean over, where these are not samples:
        the gradient is then the mean over the units of all workers. With 0 neither `loss` nor gradients of this batch
        count, and `loss` may be NaN. `correct` is then the number of correct units.

        `reduction="sum"`: `loss` is a sum over samples, which may be divided by a constant, and the gradient is that of
        the sum of the losses of all workers.

        Raises TrainingError, on all workers and before a weight changes, if a loss is not finite, if workers do not do
        the same, if their weights differ, or if no worker has a unit.
        """
        self._check_own_weights("run.backward()")
        self._loops.settle(loss)
        now = self._now
        now.check_backward()
        self._follow_parameters(before_forward=False)
        batch = now.batch
        measured = self._measures
        self._gathers.refuse(reduction, weight is not None)
        self._reduce_by(check(reduction, weight is not None))
        now.units = units = None if weight is None else self._units(weight)
        self._scale = self._loss_scale(loss)
        self._refusal = self._refused(loss) if batch.samples else ""
        counts = batch.samples > 0 if units is None else units > 0
        self._before_sum(self._kind)
        before_sum = self._weight if units is None else weight_before_sum(units, now.global_samples, self.size)
        self._exchange.begin(before_sum, measured, now.weight)
        if batch.samples:
            self._propagate(loss)
        if counts:
            now.add_loss(self._number(loss) / self._scale)
        now.close_losses()
        now.correct = math.nan if correct is None else self._number(correct) if counts else 0.0
        if self._settings.slowdown > 1:  # emulated speed, where CPU quotas are not permitted
            time.sleep(self._watch.compute_so_far_s() * (self._settings.slowdown - 1))
        self._exchange.send_rest(self._contribute)
        now.sent()
        self._observer.sent(batch.iteration)
        self._receive(measured)

    def _reduce_by(self, kind: Kind) -> None:
        """The coming sum is one of losses that are means, or sums.

        Raises TrainingError, on all workers, if gradients that are there already do not go with it.
        """
        now, reduction = self._now, self._reduction
        if conflict := reduction.conflict(kind, now, self._exchange.has_local, self._has_mixed_gradients()):
            call = f"run.backward(loss, reduction={kind!r})"
            self._announce(f"{call} after loss.backward()")
            raise TrainingError(f"{call} in iteration {self.iteration} after loss.backward(), {conflict}")
        keeper = reduction.begin(kind, now)
        now.reduction, self._weight = kind, reduction.weight(now)
        if keeper is not None and keeper not in self._workers.here and self._drop_summed_gradients():
            reduction.kept_by = keeper

    def _units(self, weight: Any) -> float:
        """The number of units in this worker's batch, or INVALID.

        Raises TrainingError, on all workers, if gradients of earlier batches would get this weight too.
        """
        if self._has_earlier:
            self._announce("run.backward(loss, weight=...) for several batches")
            raise TrainingError(
                f"run.backward(loss, weight=...) in iteration {self.iteration} after loss.backward() in an earlier "
                "batch, whose number of units is not known; call run.backward(loss, weight=...) in every batch, and "
                "optimizer.step() after the last of them"
            )
        if not self._now.batch.samples:
            return 0.0
        return units_or_invalid(self._number(weight))

    @property
    def _kind(self) -> str:
        if self._now.reduction == "sum":
            return GRADIENTS_OF_SUMS
        return GRADIENTS if self._now.units is None else WEIGHTED_GRADIENTS

    def _contribute(self, grad_sq: float) -> list[Contribution]:
        """What the workers of this process put into the trailer. `grad_sq`: squared norm of its gradient."""
        now, watch = self._now, self._watch
        scale = self._scale * self._reduction.per_sample(now.batch.samples)
        now.divide(self._workers.here, [one / scale**2 for one in self._squared_norms(grad_sq)])
        plan_version = self._switch.vote(self._session.newest_plan()).version
        doing, weights = self._doing(self._kind).code(), self._sample_weights(self._sums)
        global_sq = math.nan if now.sum is None else now.sum.squared_norm
        stream, entry_version = self._stream.report(used=True), self._entry_vote
        if self._own_size is not None:
            self._exchange.telling = self._own_size.telling
        return [
            Contribution(
                samples=part.samples,
                loss=part.weighted_loss if self._scale == 1 or math.isfinite(part.weighted_loss) else 0.0,
                correct=part.correct,
                judged=part.judged,
                grad_sq=part.grad_sq,
                plan_version=plan_version,
                waited_s=waited_s,  # the clock still shows the iteration before
                global_sq=global_sq,
                lasted_s=watch.lasted_s,
                doing=doing,
                weights=weights,
                ending=TERMINATION.requested,
                leaving=TERMINATION.leaving and self.may_leave,
                saves=self._saves_at_term,
                entry_version=entry_version,
                units=part.units or 0.0,
                stream=stream,
            )
            for part, waited_s in zip(now.parts, watch.waited_s, strict=True)
        ]

    def _receive(self, measured: bool) -> None:
        """Wait for the sum, and make it the gradients of the model if all is right."""
        now = self._now
        iteration = now.batch.iteration
        with self._watch.blocked():
            view = self._exchange.receive(
                lambda waited_s: self._stall.waiting(self._observer.reported(iteration), waited_s)
            )
        self._sums += 1
        self._tell_followers()
        self._check_agreement(view, self._kind)
        planned = sum(now.sizes_due)
        if 0 in view.members:
            now.missing = [rank for rank, size in enumerate(now.sizes_due) if size and not view.members[rank]]
        if view.worker_samples != now.sizes_due:
            raise TrainingError(
                f"the workers have processed {view.worker_samples} samples in iteration {iteration}, "
                f"the plan has {now.sizes_due}; batches must come from run.batches() of the same data on every worker"
            )
        self._stream.told(view.stream, view.present)
        self._gathers.check_gradient(now.missing)
        short = 1.0  # what makes a mean over the samples in the sum of one over those that were planned
        if now.missing:
            short = planned / view.samples if view.samples else 0.0
            self._miss(now.missing, iteration)
            if self._leads:
                self._observer.finished_without(iteration, now.missing, view.samples, planned)
        if self._comm.elastic is not None:
            self._let_go(view)
        if now.missing and now.units is None:
            view = view._replace(loss=view.loss * short)
        reason = self._reason_to_roll_back(view)
        if view.broken_ranks and not reason:
            raise TrainingError(
                f"the loss of {name_workers(view.broken_ranks)} {DIVERGED} {iteration} (epoch {self.epoch}); "
                "no weight was changed by it: lower the learning rate, or look at the data of that worker"
            )
        factor = (
            self._reduction.factor(now, short)
            if now.units is None
            else factor_after_sum(view, now.global_samples, iteration)
        )
        self._exchange.deliver(factor, short)
        squared_norm = math.nan
        if self._adaptive:
            self._observe_noise(view)
            if measured and not reason:
                scale = self._scale * self._reduction.per_sample(view.samples)
                squared_norm = self._exchange.squared_norm() / scale**2
            self._switch.decide(iteration, view.agreed_version)
            if self._own_size is not None and (sizes := self._own_size.summed(self._exchange.told, view.present)):
                self._switch.choose(iteration, sizes)
        if self._comm.elastic is not None:
            self._vote_in(view)
        now.summed(view, squared_norm, self._worth.sizes(view, now.spent_due))
        if reason:
            self._roll_back(reason)
        self._exchange.after_sum()

    def _miss(self, missing: Collection[int], iteration: int) -> None:
        """These workers are lost: their samples in the sum of `iteration` come again, and later ones are for others.

        Every worker does this after the same sum, so all prepare the same batches.
        """
        self._switch.go_without(iteration, set(missing) - self._entries.awaited(iteration))
        for step in self._now.steps_due:
            self._stream.missed(step, missing, iteration + 1 + self._switch.lag)

    def _reason_to_roll_back(self, view: GlobalView) -> str:
        """Why the weights of an earlier iteration come back after this sum; empty: they do not."""
        if self._guard is None:
            return ""
        broken = f"the loss of {name_workers(view.broken_ranks)} is not finite" if view.broken_ranks else ""
        # a GradScaler looks for gradients that are not finite itself
        return self._guard.reason(
            view.loss, view.samples, broken, lambda: self._scale != 1 or self._exchange.is_finite()
        )

    def _roll_back(self, reason: str) -> None:
        """The state of an earlier iteration comes back, with half the learning rate. A step to come changes nothing."""
        assert self._guard is not None
        now = self._now
        now.rolled_back = True
        self._exchange.clear()
        loss, level = now.sum.view.loss if now.sum else math.nan, self._guard.level
        back_to = self._guard.roll_back(now.batch.iteration)
        self._observer.rolled_back(now.batch.iteration, back_to, reason, loss, level, self._rate.guard)

    def close(self) -> None:
        """End this training: its hooks leave model and optimizers. Also runs at exit. Collective, but for who has left.

        Afterwards the script may attach another training.
        """
        if not self._closed:
            self._loops.close()
            self._tell_missed_ends()
        super().close()

    def _tell_missed_ends(self) -> None:
        """Where training has come to its end, and schedules of the script have not."""
        ratio = self._trained_ratio
        if self._leads and not self._asked.was_left and not ratio < 1:  # NaN: the end is not known
            for sentence in self._missed_ends(self.epoch):
                self._degraded("learning rate", sentence)

    def synchronize(self) -> None:
        """Does nothing but check: gradients are global when `run.backward()` returns. For scripts that call it."""
        self._now.check_summed()

    @property
    def _measures(self) -> bool:
        """Whether gradient norms are measured in the coming sum."""
        every, now = self._norm_every, self._now
        due = now.batch.iteration % every == 1 % every  # so that the first window knows them
        return self._adaptive and due and now.batches_due == 1

    @property
    def _norm_every(self) -> int:
        return min(NORM_EVERY, self._settings.window)

    def _observe_noise(self, view: GlobalView) -> None:
        """The noise of the sum before. It comes from trailers alone, so every worker computes the same bits."""
        before = self._now.sum
        if before is not None and math.isfinite(view.global_sq):
            noise = estimate(before.sizes, before.view.grad_sq, view.global_sq)
            self._rate.see(noise, self._norm_every)

    def _before_step(self, optimizer: int = 0) -> float:
        """Check that the gradients are global; return the factor on the script's learning rate for the coming step.

        The factor is for the samples that were really summed. There are fewer at the end of an epoch, and a step of
        full length along their noisier gradient would do harm.
        """
        self._check_own_weights("optimizer.step()")
        now = self._now
        now.rate = self._rate.step(now.check_step(optimizer).batch_size)
        return now.rate.factor

    def _after_step(self, optimizer: int = 0) -> None:
        """Optimizer number `optimizer` has taken its step."""
        if self._now.rolled_back and self._guard is not None:
            self._guard.put_back()
        self._now.stepped(optimizer)
        self._steps += 1
        self._count_iteration()
        self._watch.stepped()
