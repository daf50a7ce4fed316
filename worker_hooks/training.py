"""Training with a batch size of its own on every worker, whatever the framework: what all hooks share.

The story of one iteration:

1. `batches` hands out this worker's slice of the data (sampler.py, batches.py).
2. `backward` sends the weighted gradients (exchange.py), and a trailer behind them (trailer.py).
3. The optimizer's step first waits for their sum (`synchronize`). The votes in the trailer say which plan is next
   (plan_switch.py), and the learning rate follows the samples in the sum (learning_rate.py).
4. Every few iterations a record of what happened goes to the reporter (observe/).

iteration.py knows which of these steps comes next. The training thread waits for nothing but its batch and the sum.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from dynamix_ps.errors import DIVERGED, TrainingError
from dynamix_ps.metrics.noise import estimate
from worker_hooks.resumable_model import ResumableModel
from worker_hooks.trailer import Contribution, GlobalView

NORM_EVERY = 10  # iterations; gradient norms cost a pass over all gradients and change slowly (chosen by us)


class Training(ResumableModel):
    """One model in training."""

    def batches(self, epochs: int | None = None, iterations: int | None = None) -> Iterator[Any]:
        """This worker's batches, until `epochs` passes or `iterations` iterations are complete in all.

        The first call tells the policy where training ends; near the end it may want larger batches. A second call
        tells it that the end is unknown.

        A worker whose share is empty still gets one sample to run on, and its gradient counts for nothing.
        """
        if epochs is None and iterations is None:
            raise TrainingError("run.batches() needs epochs=... or iterations=..., got neither")
        self._begin()
        now = self._now
        self._observer.training_asked(epochs, iterations)
        for batch in self._stream.run(self._cursor, self.iteration, epochs, iterations):
            if batch.plan.version != self._applied_version:
                self._applied_version = batch.plan.version
                self._observer.plan_applied(batch.plan, self.iteration, self._rate.factor(batch.plan.global_batch))
            now.begin(batch)
            self._watch.batch_ready()
            yield batch.data
            now.check_stepped()
            self._observer.iteration_complete(now, self._trained_samples / self._stream.length, self._script_lr())
            self._save_when_due()
        now.end()

    def backward(self, loss: Any, correct: Any = None) -> None:
        """Backward pass of `loss`, the *mean* over this batch, and start of the gradient sum.

        `correct` is the number of correctly classified samples of the batch, if there is such a thing; it gives
        the policy the batch accuracy.
        """
        now = self._now
        now.check_backward()
        batch = now.batch
        self._exchange.begin(batch.samples, measure_norm=self._measures_norms(batch.iteration))
        if batch.samples:
            self._propagate(loss)
        now.loss = self._number(loss) if batch.samples else 0.0
        now.correct = math.nan if correct is None else self._number(correct) if batch.samples else 0.0
        if self._settings.slowdown > 1:  # emulated speed, where CPU quotas are not permitted
            time.sleep(self._watch.compute_so_far_s() * (self._settings.slowdown - 1))
        self._exchange.send_rest(self._contribute)
        now.sent()
        self._session.reporter.progress(batch.iteration + 1)

    def _contribute(self, grad_sq: float) -> Contribution:
        """What this worker puts into the trailer. `grad_sq`: squared norm of its gradient."""
        now = self._now
        now.grad_sq = grad_sq
        return Contribution(
            samples=now.batch.samples,
            loss_sum=now.loss * now.batch.samples,
            correct=now.correct,
            grad_sq=grad_sq,
            plan_version=self._switch.vote(self._session.newest_plan()).version,
            # The clock still shows the iteration before.
            waited_s=self._watch.blocked_s,
            global_sq=math.nan if now.sum_before is None else now.sum_before.squared_norm,
            lasted_s=self._watch.lasted_s,
        )

    def synchronize(self) -> None:
        """Wait for the sum, so that gradients are the global ones. Only needed to clip or read them before the
        optimizer's step, which otherwise does it."""
        now = self._now
        now.check_sent()
        if now.is_summed:
            return
        iteration = now.batch.iteration
        with self._watch.blocked():
            view = self._exchange.receive(lambda waited_s: self._stall.waiting(iteration, waited_s))
        if view.broken_ranks:
            named = ", ".join(f"worker {rank}" for rank in view.broken_ranks)
            raise TrainingError(
                f"the loss of {named} {DIVERGED} {self.iteration} (epoch {self.epoch}); "
                "no weight was changed by it: lower the learning rate, or look at the data of that worker"
            )
        squared_norm = math.nan
        if self._adaptive:
            self._observe_noise(view)
            if self._measures_norms(iteration):
                squared_norm = self._exchange.squared_norm()
            self._switch.decide(iteration, view.agreed_version)
        now.summed(view, squared_norm)

    def _measures_norms(self, iteration: int) -> bool:
        every = self._norm_every
        return self._adaptive and iteration % every == 1 % every  # so that the first window knows them

    @property
    def _norm_every(self) -> int:
        return min(NORM_EVERY, self._settings.window)

    def _observe_noise(self, view: GlobalView) -> None:
        """The noise of the iteration before. It comes from trailers alone, so every worker computes the same bits."""
        before = self._now.sum_before
        if before is not None and math.isfinite(view.global_sq):
            noise = estimate(before.view.worker_samples, before.view.grad_sq, view.global_sq)
            self._rate.see(noise, self._norm_every)

    def _before_step(self) -> float:
        """Wait for the sum; return the factor on the script's learning rate for the coming step.

        The factor is for the samples that were really summed. There are fewer at the end of an epoch, and a step of
        full length along their noisier gradient would do harm.
        """
        self.synchronize()
        return self._rate.factor(max(self._now.check_step().view.samples, 1))

    def _after_step(self) -> None:
        """The optimizer has taken its step: an iteration is complete."""
        batch = self._now.batch
        self._now.stepped()
        self.iteration += 1
        self._samples += batch.samples
        self._cursor = batch.step.next
