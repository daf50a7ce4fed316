"""What a training tells about itself: its events, and one record per window and worker. It all leaves through the
reporter.

Its methods run in the training thread, so they only read clocks and put values into the reporter's queue.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from dynamix_ps.messages import Plan, WindowRecord
from worker_hooks.iteration.in_flight import IterationInFlight
from worker_hooks.observe.account import RunAccount
from worker_hooks.observe.reporter import Reporting
from worker_hooks.observe.stopwatch import Watch
from worker_hooks.observe.training_progress import TrainingProgress
from worker_hooks.observe.window import IterationRecord, WindowMeter
from worker_hooks.saved.checkpoint import Position
from worker_hooks.settings import Settings


class TrainingObserver:
    """Observes one training. With mode off it records no windows."""

    def __init__(self, here: range, reporter: Reporting, account: RunAccount, settings: Settings, watch: Watch) -> None:
        """`here`: the workers of this process."""
        self.watch = watch
        self.progress = TrainingProgress()
        self._reporter = reporter
        self._account = account
        self._before = 0  # iterations of earlier trainings of this process
        self._records_windows = settings.config.mode != "off"
        self._stalled_after_s = settings.config.timeouts.stall_warn_s
        self._meters = [WindowMeter(rank, settings.config.window) for rank in here]
        self._here = here
        self._lr_batch, self._data_size = 0, math.nan
        self._warm_up = 0  # slow, as much happens only once; it is in no window
        self._takes_turn = False
        self.is_silent = False  # this worker is in no sum yet: nothing of it is recorded
        self._began_s: float | None = None

    def begin_at(self, start: Position, data_size: float) -> None:
        """Training begins at `start`. `data_size`: of a pass, in the unit of the plan; NaN: that is not known."""
        self.progress = TrainingProgress(start.largest_lr, start.progress)
        self._lr_batch, self._data_size, self._warm_up = start.reference_batch, data_size, start.iteration

    @property
    def _has_turn(self) -> bool:
        return self._takes_turn and not self.is_silent

    @property
    def window(self) -> int:
        """The number of the window at hand, the same on all workers that take part."""
        return self._meters[0].next_window

    def workers_enter(self, iteration: int) -> None:
        """Workers take part from `iteration` on: all begin a window behind it, as the newcomers do."""
        self._warm_up = iteration
        self._begin_window(self.window)

    def enter(self, window: int) -> None:
        """This worker is a newcomer, and all begin this window."""
        self.is_silent = False
        self._begin_window(window)

    def _begin_window(self, number: int) -> None:
        for meter in self._meters:
            meter.begin(number)
        self._reporter.begin_window()

    def training_asked(self, epochs: int | None, iterations: int | None, may_go_on: bool = False) -> None:
        """The script asks for batches up to these limits. `may_go_on`: it may ask for more of them later."""
        if self._began_s is None:
            self._began_s = self.watch.now_s()
            self.watch.begin()
        self.progress.ask(epochs, iterations, may_go_on)

    def loop_begun(self, iteration: int) -> None:
        """A loop over batches begins at `iteration`."""
        self.watch.loop_begun()
        self._takes_turn = self._account.take_turn(self)
        if self._takes_turn:
            self._before = max(self._account.iterations - iteration, 0)
            for meter in self._meters:
                meter.continue_from(self._account.windows)

    def loop_ended(self, iteration: int) -> None:
        """It is over."""
        if self._takes_turn:
            self._account.iterations = self._before + iteration
            self._account.windows = self.window
        self._account.give_turn_back(self)
        self._takes_turn = False

    def reported(self, iteration: int) -> int:
        """The number of this iteration in the run's records."""
        return self._before + iteration

    def batch_complete(self, iterations: int) -> None:
        """So many iterations are complete."""
        if self._has_turn:
            self._reporter.completed(self.reported(iterations))

    def sent(self, iteration: int) -> None:
        """This worker has sent its gradients of `iteration`."""
        if self._has_turn:
            self._reporter.progress(self.reported(iteration) + 1)

    def plan_applied(self, plan: Plan, iteration: int, lr_factor: float) -> None:
        """`plan` is in force from `iteration` on. A window begins with it."""
        if not self._has_turn:
            return
        self._reporter.begin_window()
        self._reporter.event(
            "plan_applied",
            version=plan.version,
            iteration=self.reported(iteration),
            batch_sizes=list(plan.batch_sizes),
            lr_factor=lr_factor,
        )

    def rolled_back(self, iteration: int, back_to: int, reason: str, loss: float, level: float, guard: float) -> None:
        """In `iteration` the weights of before `back_to` came back, and the guard has left `guard` of the rate."""
        if self._has_turn:
            self._reporter.event(
                "rollback",
                iteration=self.reported(iteration),
                back_to=self.reported(back_to),
                reason=reason,
                loss=loss,
                level=level,
                lr_guard=guard,
            )

    def wire_changed(self, iteration: int, wire: str, reason: str) -> None:
        """Gradients travel by this wire from `iteration` on."""
        if self._has_turn:
            self._reporter.event("wire_changed", iteration=self.reported(iteration), wire=wire, reason=reason)

    def finished_without(self, iteration: int, ranks: Collection[int], samples: int, planned: int) -> None:
        """The sum of `iteration` is without these lost workers, so it has `samples` in place of `planned`."""
        missing = sorted(ranks)
        self._reporter.event(
            "short", iteration=self.reported(iteration), missing=missing, samples=samples, planned=planned
        )

    def left(self, iteration: int, workers: int) -> None:
        """This worker leaves the job on notice: from `iteration` on these `workers` go on without it."""
        self._reporter.event("worker_left", iteration=self.reported(iteration), workers=workers)

    def entered(self, iteration: int, ranks: Collection[int], workers: int, copy_s: float) -> None:
        """These workers take part from `iteration` on, `workers` with the others; they got the state in `copy_s`."""
        self._reporter.event(
            "workers_entered",
            iteration=self.reported(iteration),
            entered=sorted(ranks),
            workers=workers,
            copy_s=round(copy_s, 4),
        )

    def servers_entered(self, iteration: int, servers: Collection[int]) -> None:
        """These servers sum from `iteration` on."""
        self._reporter.event("servers_entered", iteration=self.reported(iteration), entered=sorted(servers))

    def leave_refused(self, iteration: int, why: str) -> None:
        """This worker was to leave, and its vote in the sum of `iteration` does not count."""
        self._reporter.event("leave_refused", iteration=self.reported(iteration), why=why)

    def iteration_complete(
        self, now: IterationInFlight, bytes_pushed: int, epochs: float, script_lr: float, at_once: float
    ) -> list[WindowRecord]:
        """The script asks for the next batch, after a sum. Returns the records of a window that ends with it.

        Args:
            bytes_pushed: by a worker in the sum.
            epochs: passes over the data set so far.
            script_lr: the learning rate as the script has set it.
            at_once: what fits into this worker's memory at once, in the plan's unit; NaN: no ceiling is known.
        """
        of_workers = self.watch.end()
        closed: list[WindowRecord] = []
        if not self._records_windows or not self._has_turn or now.sum is None:
            return closed
        batch = now.batch
        if batch.iteration == self._warm_up:
            self._reporter.begin_window()
            return closed
        trained_ratio = self.progress.ratio_to_rely_on(epochs, batch.iteration + 1)
        lr_ratio = self.progress.lr_ratio(script_lr)
        for rank, meter, part, times in zip(self._here, self._meters, now.parts, of_workers, strict=True):
            record = meter.add(
                IterationRecord(
                    number=self.reported(batch.iteration),
                    plan_version=batch.plan.version,
                    batch_size=batch.plan.batch_sizes[rank],
                    samples=part.size,
                    global_samples=sum(now.spent),
                    times=meter.recurring(times),
                    loss=math.nan if now.rolled_back else now.loss,
                    correct=part.correct,
                    grad_sq=math.nan if now.rolled_back else part.grad_sq,
                    global_grad_sq=now.sum.squared_norm,
                    view=now.sum.view,
                    loss_weight=part.loss_weight,
                    sizes=now.sum.sizes,
                    epoch=epochs,
                    trained_ratio=trained_ratio,
                    lr_ratio=lr_ratio,
                    rate=now.rate,
                    lr_batch=self._lr_batch,
                    bytes_pushed=bytes_pushed,
                    is_short=batch.is_short,
                    stalled=times.blocked_s >= self._stalled_after_s or now.rolled_back,
                    at_once=at_once,
                    data_size=self._data_size,
                )
            )
            if record is not None:
                self._reporter.window(record)
                closed.append(record)
        return closed

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens in here is not training: it is in no window, and a window begins after it."""
        if self.is_silent:
            yield
            return
        self._reporter.event("paused")
        with self.watch.paused():
            yield
        self._reporter.event("resumed")
        self._reporter.begin_window()

    def evaluated(
        self,
        iteration: int,
        epoch: int,
        values: Mapping[str, float],
        higher_is_better: Mapping[str, bool],
        samples: int | None,
        trained_samples: int,
    ) -> None:
        """The model after `iteration` iterations has these values on `samples` samples, where their number is known."""
        self._reporter.event(
            "evaluation",
            iteration=self.reported(iteration),
            epoch=epoch,
            values=values,
            higher_is_better=higher_is_better,
            samples=samples,
            trained_samples=trained_samples,
            trained_s=self._since_begin_s() - self.watch.pauses_s,
        )

    def _since_begin_s(self) -> float:
        """Seconds since training began, pauses included."""
        return 0.0 if self._began_s is None else self.watch.now_s() - self._began_s
