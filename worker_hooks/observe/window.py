"""From iterations to window records: times split into input, compute, push-pull and wait. Pure.

A worker is blocked in the sum for two reasons: the network, and workers that come later. Every worker's blocked time
travels in the trailer of the next iteration. The smallest of them belongs to the worker that came last and waited only
for the network. This minimum is push_pull; the rest is wait (definition chosen by us). So an iteration, and with it a
window, is complete one iteration later.

What a script does between a step and the next batch in every iteration, such as logging, takes part in a worker's
speed, and counts as computing. What does not recur, such as an evaluation by one worker alone, is `outside_s` (rule and
numbers chosen by us).

A window has one plan from its first iteration to its last: when a new plan takes effect, all workers drop the open
window and begin another one at the same iteration. So do they when a worker enters, which learns the number of that
window from them: a window is complete when all have reported its number. The first window is short: where speeds differ
much, a whole window at equal sizes takes a seventh of the time that the training after it needs
(benchmarks/results/attempts.md). A window in which the cluster changes (change.py) keeps only the iterations since the
change, and ends. Iterations in which a worker runs out of samples say nothing about the plan: they are in a window only
where it has no others.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import Any, NamedTuple

from dynamix_ps.messages import WindowRecord
from dynamix_ps.metrics.noise import estimate
from worker_hooks.exchange.trailer import GlobalView
from worker_hooks.observe.change import LASTING, ChangeWatch
from worker_hooks.observe.stopwatch import Times
from worker_hooks.planning.learning_rate import StepRate

FIRST_WINDOW = 3  # iterations (chosen by us)
USUAL = 20  # iterations, the newest, by whose median it is known what recurs between a step and the next batch
BEYOND_USUAL, BEYOND_S = 3.0, 1e-3  # more than so many times that, and so many seconds more, does not recur


class IterationRecord(NamedTuple):
    """One iteration as its worker saw it."""

    number: int
    plan_version: int
    batch_size: int  # planned
    samples: int  # really processed, in the unit of the plan; the next too
    global_samples: int
    times: Times
    loss: float
    correct: float  # of `loss_weight`
    grad_sq: float  # NaN where it was not measured, this and the next
    global_grad_sq: float
    view: GlobalView
    loss_weight: float  # of `loss`: units that the script gave, samples otherwise
    sizes: tuple[float, ...]  # what the part of every worker is worth, in the plan's unit (units.py)
    epoch: float = math.nan  # passes over the data after it
    trained_ratio: float = math.nan  # training_progress.py
    lr_ratio: float = math.nan
    rate: StepRate = StepRate()
    lr_batch: float = math.nan  # the global batch that the learning rate is for
    bytes_pushed: int = 0
    is_short: bool = False  # a worker has far fewer samples than planned
    stalled: bool = False  # waited for longer than timeouts.stall_warn_s, or the weights went back
    at_once: float = math.nan  # what fits at once, in the plan's unit; NaN: no ceiling is known
    data_size: float = math.nan  # of a pass over the data, in the plan's unit; NaN: of a stream


class WindowMeter:
    """Cuts iterations into windows of `length` iterations. The first window has at most FIRST_WINDOW iterations, a
    window in which the cluster changes at most LASTING."""

    def __init__(self, rank: int, length: int) -> None:
        self._rank = rank
        self._length = length
        self.next_window = 0
        self._due = min(FIRST_WINDOW, length)  # iterations of the window at hand
        self._change = ChangeWatch()
        self._last: IterationRecord | None = None
        self._rows: list[tuple[IterationRecord, float]] = []
        self._usual: deque[float] = deque(maxlen=USUAL)  # times between a step and the next batch

    def continue_from(self, window: int) -> None:
        """Windows are numbered from `window` on, if another meter has recorded some since."""
        if window > self.next_window:
            self.next_window = window
            self._last = None
            self._begin_window()

    def begin(self, window: int) -> None:
        """Window number `window` begins with the next iteration, without what was before."""
        self.next_window = window
        self._last = None
        self._begin_window()
        self._change.restart()

    def add(self, iteration: IterationRecord) -> WindowRecord | None:
        """Add an iteration, whose view completes the one before. Returns a record when that closed a window.

        Its times are those of `recurring`.
        """
        before, self._last = self._last, iteration
        if before is None:
            return None
        if self._rows:
            first = self._rows[0][0]
            if first.plan_version != before.plan_version:
                self._begin_window()
                self._change.restart()
            elif before.is_short and not first.is_short:
                return None
            elif first.is_short and not before.is_short:
                self._rows = []
        network_s = iteration.view.shortest_wait_s
        self._rows.append((before, min(network_s, before.times.blocked_s)))
        if not before.is_short and self._change.see(iteration.view.waited_s, iteration.view.lasted_s):
            self._rows, self._due = self._rows[-LASTING:], min(LASTING, self._due)
        if len(self._rows) < self._due:
            return None
        record = self._record(self._rows)
        self.next_window += 1
        self._begin_window()
        return record

    def recurring(self, times: Times) -> Times:
        """The times of the next iteration, where what recurs between a step and the next batch counts as computing,
        and the rest as outside."""
        outside_s = times.outside_s
        self._usual.append(outside_s)
        if outside_s <= BEYOND_S or outside_s <= BEYOND_USUAL * median(self._usual) + BEYOND_S:
            input_s, compute_s, blocked_s, duration_s, cpu_s, gc_s, *_ = times
            return Times(input_s, compute_s + outside_s, blocked_s, duration_s, cpu_s, gc_s)
        usual_s = median(self._usual)
        rest_s = times.outside_s - usual_s
        rest_cpu_s = times.outside_cpu_s * rest_s / times.outside_s
        return times._replace(
            compute_s=times.compute_s + usual_s,
            outside_s=rest_s,
            cpu_s=times.cpu_s - rest_cpu_s,
            outside_cpu_s=rest_cpu_s,
        )

    def _begin_window(self) -> None:
        self._rows = []
        self._due = self._length if self.next_window else min(FIRST_WINDOW, self._length)

    def _record(self, rows: list[tuple[IterationRecord, float]]) -> WindowRecord:
        iterations = [row[0] for row in rows]
        first, last = iterations[0], iterations[-1]
        each: Any = IterationRecord._make(zip(*iterations, strict=True))  # one tuple per field: quick to add up
        times: Any = Times._make(zip(*each.times, strict=True))
        push_pull_s = sum(network_s for _, network_s in rows)
        bytes_pushed, duration_s, judged = sum(each.bytes_pushed), sum(times.duration_s), sum(each.loss_weight)
        measured = [i for i in iterations if math.isfinite(i.global_grad_sq)]
        local_sq = list(filter(math.isfinite, each.grad_sq))
        norm, norm_std = _mean_and_std(list(map(math.sqrt, local_sq)))
        _, accuracy_std = _mean_and_std([i.correct / i.loss_weight for i in iterations if i.loss_weight])
        noise = [estimate(i.sizes, i.view.grad_sq, i.global_grad_sq) for i in measured]
        weighs = any(any(view.units) for view in each.view)
        global_weights = [view.loss_weight for view in each.view]
        return WindowRecord(
            rank=self._rank,
            window=self.next_window,
            first_iteration=first.number,
            iterations=len(rows),
            plan_version=first.plan_version,
            batch_size=first.batch_size,
            samples=sum(each.samples),
            duration_s=duration_s,
            compute_s=sum(times.compute_s),
            push_pull_s=push_pull_s,
            wait_s=max(0.0, sum(times.blocked_s) - push_pull_s),
            input_s=sum(times.input_s),
            outside_s=sum(times.outside_s),
            loss=_mean(zip(each.loss, each.loss_weight, strict=True)),
            accuracy=sum(each.correct) / judged if judged else math.nan,
            global_samples=sum(each.global_samples),
            global_loss=_mean((view.loss, weight) for view, weight in zip(each.view, global_weights, strict=True)),
            global_accuracy=_mean(
                (view.accuracy, weight) for view, weight in zip(each.view, global_weights, strict=True)
            ),
            units=judged if weighs else math.nan,
            global_units=sum(global_weights) if weighs else math.nan,
            grad_sq_local=_mean((square, 1) for square in local_sq),
            grad_sq_global=_mean((i.global_grad_sq, 1) for i in measured),
            grad_norm_std=norm_std / norm if norm else math.nan,
            bytes_pushed=bytes_pushed,
            accuracy_std=accuracy_std,
            cpu_ratio=sum(times.cpu_s) / duration_s if duration_s > 0 else math.nan,
            noise_variance=_mean((one.variance, 1) for one in noise if math.isfinite(one.variance)),
            noise_signal=_mean((one.signal, 1) for one in noise if math.isfinite(one.signal)),
            epoch=last.epoch,
            trained_ratio=last.trained_ratio,
            lr_ratio=last.lr_ratio,
            lr_factor=last.rate.factor,
            lr_guard=last.rate.guard,
            lr_batch=last.lr_batch,
            gc_s=sum(times.gc_s),
            summed_bytes_per_s=bytes_pushed / duration_s if duration_s > 0 else math.nan,
            at_once=last.at_once,
            data_size=last.data_size,
            flagged=any(each.stalled),
        )


def _mean(weighted: Iterable[tuple[float, float]]) -> float:
    """Weighted mean. Values of weight 0 do not count and may be NaN; without any weight the mean is NaN."""
    total, weight = 0.0, 0.0
    for value, count in weighted:
        if count:
            total += value * count
            weight += count
    return total / weight if weight else math.nan


def _mean_and_std(values: list[float]) -> tuple[float, float]:
    """Mean and population standard deviation. Unknown (NaN) of fewer than two values, which have no spread to tell."""
    if len(values) < 2:
        return math.nan, math.nan
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
