"""The backward pass of a batch, and the sum of gradients that follows: what `run.backward` does."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from dynamix_ps.errors import DIVERGED, TrainingError
from dynamix_ps.metrics.noise import estimate
from worker_hooks.exchange.agreement import GRADIENTS, GRADIENTS_OF_SUMS, WEIGHTED_GRADIENTS, name_workers
from worker_hooks.exchange.trailer import Contribution, GlobalView
from worker_hooks.exchange.units import factor_after_sum, units_or_invalid, weight_before_sum
from worker_hooks.iteration.reduction import Kind, check
from worker_hooks.process.termination import TERMINATION

if TYPE_CHECKING:
    from worker_hooks.training import Training

NORM_EVERY = 10  # iterations; gradient norms cost a pass over all gradients and change slowly (chosen by us)


class Backward:
    """The backward passes of one training."""

    def __init__(self, training: Training) -> None:
        self._training, self._session = training, training.session
        self._adapter, self._sums, self._plans = training.adapter, training.sums, training.plans
        self._now, self._progress, self._observer = training.now, training.progress, training.observer
        settings = training.session.settings
        self._adapts, self._norm_every = settings.config.mode != "off", min(NORM_EVERY, settings.config.window)

    def __call__(self, loss: Any, correct: Any, weight: Any, reduction: Kind) -> None:
        """`run.backward(...)`."""
        adapter, sums = self._adapter, self._sums
        self._training.evaluator.check_own_weights("run.backward()")
        self._training.loops.settle(loss)
        now = self._now
        now.check_backward()
        sums.complete()
        self._training.replicas.follow_parameters(before_forward=False)
        batch = now.batch
        measured = self.measures
        self._training.gathers.refuse(reduction, weight is not None)
        self._reduce_by(check(reduction, weight is not None))
        now.units = units = None if weight is None else self._units(weight)
        sums.scale = adapter.loss_scale(loss)
        sums.refusal = adapter.refused(loss) if batch.samples else ""
        counts = batch.samples > 0 if units is None else units > 0
        self._training.gathers.before_sum(self._kind)
        workers = self._session.workers.count
        before_sum = sums.weight if units is None else weight_before_sum(units, now.global_samples, workers)
        sums.exchange.begin(before_sum, measured, now.weight)
        if batch.samples:
            adapter.propagate(loss)
        if counts:
            now.add_loss(adapter.number(loss) / sums.scale)
        now.close_losses()
        now.correct = math.nan if correct is None else adapter.number(correct) if counts else 0.0
        if (slowdown := self._session.settings.slowdown) > 1:  # emulated speed, where CPU quotas are not permitted
            time.sleep(self._observer.watch.compute_so_far_s() * (slowdown - 1))
        sums.exchange.send_rest(self._contribute)
        now.sent()
        self._observer.sent(batch.iteration)
        self._receive(measured)

    def _reduce_by(self, kind: Kind) -> None:
        """The coming sum is one of losses that are means, or sums.

        Raises TrainingError, on all workers, if gradients that are there already do not go with it.
        """
        now, sums = self._now, self._sums
        if kind == sums.reduction.kind == "mean":
            return  # each batch has its weight since it began
        conflict = sums.reduction.conflict(kind, now, sums.exchange.has_local, self._adapter.has_mixed_gradients())
        if conflict:
            call = f"run.backward(loss, reduction={kind!r})"
            sums.announce(f"{call} after loss.backward()")
            raise TrainingError(f"{call} in iteration {self._progress.iteration} after loss.backward(), {conflict}")
        keeper = sums.reduction.begin(kind, now)
        now.reduction, sums.weight = kind, sums.reduction.weight(now)
        if keeper is not None and keeper not in self._session.workers.here and self._adapter.drop_summed_gradients():
            sums.reduction.kept_by = keeper

    def _units(self, weight: Any) -> float:
        """The number of units in this worker's batch, or INVALID.

        Raises TrainingError, on all workers, if gradients of earlier batches would get this weight too.
        """
        if self._sums.has_earlier:
            self._sums.announce("run.backward(loss, weight=...) for several batches")
            raise TrainingError(
                f"run.backward(loss, weight=...) in iteration {self._progress.iteration} after loss.backward() in an "
                "earlier batch, whose number of units is not known; call run.backward(loss, weight=...) in every "
                "batch, and optimizer.step() after the last of them"
            )
        if not self._now.batch.samples:
            return 0.0
        return units_or_invalid(self._adapter.number(weight))

    @property
    def _kind(self) -> str:
        if self._now.reduction == "sum":
            return GRADIENTS_OF_SUMS
        return GRADIENTS if self._now.units is None else WEIGHTED_GRADIENTS

    def _contribute(self, grad_sq: float) -> list[Contribution]:
        """What the workers of this process put into the trailer. `grad_sq`: squared norm of its gradient."""
        now, watch, sums = self._now, self._observer.watch, self._sums
        scale = sums.scale * sums.reduction.per_sample(now.batch.samples)
        now.divide(self._session.workers.here, [one / scale**2 for one in self._adapter.squared_norms(grad_sq)])
        plan_version = self._plans.switch.vote(self._session.newest_plan()).version
        doing, weights = sums.doing(self._kind).code(), sums.weights
        global_sq = math.nan if now.sum is None else now.sum.squared_norm
        stream = self._training.data.stream.report(used=True)
        entry_version = 0 if self._training.membership is None else self._training.membership.entry_vote
        if self._plans.own_size is not None:
            sums.exchange.trailer.telling = self._plans.own_size.telling
        return [
            Contribution(
                samples=part.samples,
                loss=part.weighted_loss if sums.scale == 1 or math.isfinite(part.weighted_loss) else 0.0,
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
                leaving=TERMINATION.leaving and self._training.ending.may_leave,
                saves=self._training.ending.saves_at_term,
                entry_version=entry_version,
                units=part.units or 0.0,
                stream=stream,
            )
            for part, waited_s in zip(now.parts, watch.waited_s, strict=True)
        ]

    def _receive(self, measured: bool) -> None:
        """Wait for the sum, and make it the gradients of the model if all is right."""
        now, sums, membership = self._now, self._sums, self._training.membership
        iteration = now.batch.iteration
        view = sums.receive(self._observer.reported(iteration), self._may_be_late(measured))
        if membership is not None:
            membership.tell_followers()
        sums.check_agreement(view, self._kind)
        sizes = now.sizes_due
        planned = sum(sizes)
        if 0 in view.members:
            now.missing = [rank for rank, size in enumerate(sizes) if size and not view.members[rank]]
            sizes = now.sizes_due
        if view.worker_samples != sizes:
            raise TrainingError(
                f"the workers have processed {view.worker_samples} samples in iteration {iteration}, "
                f"the plan has {sizes}; batches must come from run.batches() of the same data on every worker"
            )
        self._training.data.stream.told(view.stream, view.present)
        self._training.gathers.check_gradient(now.missing, now.batch.samples > 0)
        short = 1.0  # what makes a mean over the samples in the sum of one over those that were planned
        if now.missing:
            short = planned / view.samples if view.samples else 0.0
            self._miss(now.missing, iteration)
            if sums.leads:
                self._observer.finished_without(iteration, now.missing, view.samples, planned)
        if membership is not None:
            membership.let_go(view)
        if now.missing and now.units is None:
            view = view._replace(loss=view.loss * short)
        reason = self._reason_to_roll_back(view)
        if view.broken_ranks and not reason:
            raise TrainingError(
                f"the loss of {name_workers(view.broken_ranks)} {DIVERGED} {iteration} (epoch "
                f"{self._progress.cursor.epoch}); no weight was changed by it: lower the learning rate, or look at the "
                "data of that worker"
            )
        factor = (
            sums.reduction.factor(now, short)
            if now.units is None
            else factor_after_sum(view, now.global_samples, iteration)
        )
        sums.exchange.deliver(factor, short)
        squared_norm = math.nan
        if self._adapts:
            self._observe_noise(view)
            if measured and not reason:
                scale = sums.scale * sums.reduction.per_sample(view.samples)
                squared_norm = sums.exchange.squared_norm() / scale**2
            self._plans.decide(iteration, view, sums.exchange.trailer.told)
        self._choose_wire(view, rolled_back=bool(reason))
        if membership is not None:
            membership.vote_in(view)
        now.summed(view, squared_norm, self._plans.worth.sizes(view, now.spent_due))
        if reason:
            self._roll_back(reason)
        sums.exchange.after_sum()

    def not_late_because(self) -> str:
        """Why no iteration has late gradients although the cluster file asks for them; empty: some may have."""
        exchange, comm = self._sums.exchange, self._session.comm
        if self._session.settings.config.overlap == "backward" or comm.size == 1:
            return ""
        if self._plans.guard is not None:
            return "`lr: guard` looks at all gradients before a weight changes, so each step waits for all sums"
        if exchange.late is None:
            who = "a job whose workers come and go" if comm.elastic is not None else self._adapter.framework
            return f"{who} waits for all sums in run.backward()"
        return ""

    def _may_be_late(self, measured: bool) -> bool:
        """Whether gradients may come after the trailer: all that needs them meanwhile waits for them."""
        return not measured and self._plans.guard is None and self._sums.exchange.may_be_late()

    def _miss(self, missing: Collection[int], iteration: int) -> None:
        """These workers are lost: their samples in the sum of `iteration` come again, and later ones are for others.

        Every worker does this after the same sum, so all prepare the same batches.
        """
        if self._training.membership is None:
            self._plans.switch.go_without(iteration, missing)
        else:
            self._training.membership.votes.lose(iteration, missing)
        for step in self._now.steps_due:
            self._training.data.stream.missed(step, missing, iteration + 1 + self._plans.switch.lag)

    def _reason_to_roll_back(self, view: GlobalView) -> str:
        """Why the weights of an earlier iteration come back after this sum; empty: they do not."""
        if self._plans.guard is None:
            return ""
        broken = f"the loss of {name_workers(view.broken_ranks)} is not finite" if view.broken_ranks else ""
        sums = self._sums
        # a GradScaler looks for gradients that are not finite itself
        return self._plans.guard.reason(
            view.loss, view.samples, broken, lambda: sums.scale != 1 or sums.exchange.is_finite()
        )

    def _choose_wire(self, view: GlobalView, rolled_back: bool) -> None:
        """All workers change the wire after the same sum: whatever they push next travels by the new one."""
        choice = self._plans.wire
        if choice is None or not self._session.comm.wires:
            return
        if reason := choice.see(view.lasted_s, view.shortest_wait_s, view.samples, view.loss, rolled_back):
            self._sums.exchange.set_wire(choice.wire)
            if self._sums.leads:
                self._observer.wire_changed(self._now.batch.iteration + 1, choice.wire, reason)

    def _roll_back(self, reason: str) -> None:
        """The state of an earlier iteration comes back, with half the learning rate. A step to come changes nothing."""
        guard, now = self._plans.guard, self._now
        assert guard is not None
        now.rolled_back = True
        self._sums.exchange.clear()
        loss, level = now.sum.view.loss if now.sum else math.nan, guard.level
        back_to = guard.roll_back(now.batch.iteration)
        self._observer.rolled_back(now.batch.iteration, back_to, reason, loss, level, self._plans.rate.guard)

    @property
    def measures(self) -> bool:
        """Whether gradient norms are measured in the coming sum."""
        every, now = self._norm_every, self._now
        due = now.batch.iteration % every == 1 % every  # so that the first window knows them
        return self._adapts and due and now.batches_due == 1

    def _observe_noise(self, view: GlobalView) -> None:
        """The noise of the sum before. It comes from trailers alone, so every worker computes the same bits."""
        before = self._now.sum
        if before is not None and math.isfinite(view.global_sq):
            noise = estimate(before.sizes, before.view.grad_sq, view.global_sq)
            self._plans.rate.see(noise, self._norm_every)
