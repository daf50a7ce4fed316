"""The dynamic-batching controller as published (Tyagi and Sharma, arXiv 2305.12213, III-C).

    t_k    compute time of an iteration without communication, smoothed since the last change of sizes
    b_k <- b_k * mean(t) / t_k        if any size moves by more than 5 %, else all stay

It is a proportional controller whose gain is the measured throughput; the smoothing acts as the integrator.
The controller learns the largest size: if a worker's throughput falls after it grew from b to b', its maximum is b from
then on. The global batch changes with the split (two workers at 64 with times 1 and 3 go to 128 + 43). `keep_global`
scales the sizes back to the present B, as the authors' later code does.

Chosen by us: the coefficient of the smoothing, which is not published, and when a throughput counts as fallen: if it is
less than CLIFF of one measured over SETTLED windows, as happens when memory runs out. The margin is wide because a
maximum is never raised again and times scatter: by 4 to 10 % from window to window, and by 30 % in the short first one.
With a margin of 5 %, noise shrinks the sizes of equal workers to a third within a minute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dynamix_ps.apportion import apportion, largest_change
from dynamix_ps.config.schema import Config
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.policy.baselines.proportional import DEAD_BAND, SMOOTHING
from dynamix_ps.policy.cluster_model.compute_times import ComputeMeter
from dynamix_ps.policy.window_arrays import arrays_of

CLIFF = 0.7  # of the throughput before
SETTLED = 2  # windows


class PidPolicy:
    """Equalises compute times step by step."""

    name = "pid"

    def __init__(self, n_workers: int, keep_global: bool = False) -> None:
        self._keep_global = keep_global
        self._meter = ComputeMeter(n_workers)
        self._version = -1  # of the plan that the times belong to
        self._sizes: tuple[int, ...] = ()
        self._times_s: list[float | None] = [None] * n_workers
        self._windows = [0] * n_workers  # number of windows behind each time
        self._before: list[tuple[int, float] | None] = [None] * n_workers  # size and throughput before that plan
        self._maxima: list[float] = [math.inf] * n_workers

    def decide(self, view: View) -> Decision:
        """New sizes, or the present ones if the window is not clean or little would change."""
        sizes = view.plan.batch_sizes
        if not view.clean:
            return Decision(sizes)
        if view.plan.version != self._version:
            self._begin(view)
        _, times_s = self._meter.per_iteration(arrays_of(view))
        for rank, time_s in enumerate(times_s.tolist()):
            if math.isfinite(time_s):
                self._measure(rank, time_s, sizes[rank])
        wanted = self._wanted(view)
        return Decision(wanted if largest_change(sizes, wanted) > DEAD_BAND else sizes)

    def _begin(self, view: View) -> None:
        """Start measuring a new plan; keep the throughputs of the previous one for comparison."""
        for rank, time_s in enumerate(self._times_s):
            settled = time_s if self._windows[rank] >= SETTLED else None
            self._before[rank] = None if settled is None else (self._sizes[rank], self._sizes[rank] / settled)
        self._times_s, self._windows = [None] * len(self._times_s), [0] * len(self._times_s)
        self._version, self._sizes = view.plan.version, view.plan.batch_sizes

    def _measure(self, rank: int, time_s: float, size: int) -> None:
        smoothed = self._times_s[rank]
        self._times_s[rank] = time_s if smoothed is None else smoothed + SMOOTHING * (time_s - smoothed)
        self._windows[rank] += 1
        before, self._before[rank] = self._before[rank], None  # compared once, in the first window of a plan
        if before is not None and size > before[0] and size / time_s < CLIFF * before[1]:
            self._maxima[rank] = min(self._maxima[rank], before[0])

    def _wanted(self, view: View) -> tuple[int, ...]:
        """b_k * mean(t) / t_k within bounds and learned maxima; a worker without a time keeps its size."""
        known = [(rank, time_s) for rank, time_s in enumerate(self._times_s) if time_s is not None]
        sizes = list(view.plan.batch_sizes)
        if not known:
            return view.plan.batch_sizes
        mean_s = math.fsum(time_s for _, time_s in known) / len(known)
        low = [view.bounds[rank][0] for rank, _ in known]
        high = [int(max(view.bounds[rank][0], min(view.bounds[rank][1], self._maxima[rank]))) for rank, _ in known]
        moved: Sequence[float] = [sizes[rank] * mean_s / time_s for rank, time_s in known]
        total = sum(sizes[rank] for rank, _ in known)
        if self._keep_global and sum(low) <= total <= sum(high):
            moved = apportion(total, moved, low, high)
        for (rank, _), value, least, most in zip(known, moved, low, high, strict=True):
            sizes[rank] = round(min(max(value, least), most))
        return tuple(sizes)


def pid_policy(config: Config, n_workers: int) -> PidPolicy:
    """The policy with the settings of section `policy.pid`."""
    return PidPolicy(n_workers, config.policy.pid.keep_global)
