"""The dynamic-batching controller as published (Tyagi and Sharma, arXiv 2305.12213, III-C).

    t_k    compute time of an iteration without communication, smoothed
    b_k <- b_k * mean(t) / t_k        if any size moves by more than 5 %, else all stay

It is a proportional controller whose gain is the measured throughput; the smoothing acts as the integrator.
The controller learns the largest size: if a worker's throughput falls after it grew from b to b', its maximum is b from
then on. The global batch changes with the split (two workers at 64 with times 1 and 3 go to 128 + 43). `keep_global`
splits the present B instead, so that all workers finish together.

The authors' later code (OmniLearn, arXiv 2503.17469) decides once per epoch from the mean of that epoch's times, has a
dead-band of 20 % for each worker by itself, learns no maximum, and comes back to the initial B: whatever the sizes sum
to beyond it is taken from all workers in equal parts. `keep_global` shares that aim, not the equal parts, which would
undo some of the balance.

Chosen by us:

- How times are smoothed, and when sizes may change (steady_times.py). Published: smoothing begins anew with every
  change of sizes, with an unknown coefficient.
- The first step is the published one. Afterwards mean(t) is the same, and the size that needs it comes from the line
  of each worker, which knows the part of its time that does not depend on the size.
- A throughput has fallen if it is less than CLIFF of the one that SETTLED windows or more had shown, as happens when
  memory runs out. The margin is wide because a maximum is never raised again, and times scatter: by 4 to 10 % from
  window to window, and by 30 % in the short first one. With a margin of 5 %, noise shrinks the sizes of equal workers
  to a third within a minute.
"""

from __future__ import annotations

import math

import numpy as np

from dynamix_ps.apportion import apportion
from dynamix_ps.config.schema import Config
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.policy.baselines.steady_times import SteadyTimes

CLIFF = 0.7  # of the throughput before
SETTLED = 2  # windows


class PidPolicy:
    """Equalises compute times step by step."""

    name = "pid"

    def __init__(self, n_workers: int, keep_global: bool = False) -> None:
        self._keep_global = keep_global
        self._times = SteadyTimes(n_workers)
        self._before: tuple[tuple[int, ...], list[float]] | None = None  # sizes and throughputs under the plan before
        self._maxima: list[float] = [math.inf] * n_workers

    def decide(self, view: View) -> Decision:
        """New sizes, or the present ones if the window is not clean, little would change, or the plan has to stay."""
        sizes = view.plan.batch_sizes
        if not view.clean:
            return Decision(sizes)
        self._times.observe(view)
        self._maxima = [most if high else math.inf for most, (_, high) in zip(self._maxima, view.bounds, strict=True)]
        self._learn_maxima(sizes)
        decision = self._times.decide(view, self._wanted(view))
        if decision.batch_sizes != sizes and self._times.windows >= SETTLED:
            self._before = sizes, (np.asarray(sizes) / self._times.seconds(sizes)).tolist()
        return decision

    def _learn_maxima(self, sizes: tuple[int, ...]) -> None:
        """In the first window of a plan: whose throughput fell because it grew?"""
        if self._before is None or self._before[0] == sizes:
            return
        measured = (self._times.sizes / self._times.times_s).tolist()
        for rank, (size, throughput) in enumerate(zip(*self._before, strict=True)):
            if sizes[rank] > size and measured[rank] < CLIFF * throughput:
                self._maxima[rank] = min(self._maxima[rank], size)
        self._before = None

    def _wanted(self, view: View) -> tuple[int, ...]:
        """Sizes at which all compute for mean(t), or B at equal times; a worker never measured keeps its size."""
        sizes, known = view.plan.batch_sizes, self._times.known
        if not known:
            return sizes
        low = [view.bounds[rank][0] for rank in known]
        high = [int(max(view.bounds[rank][0], min(view.bounds[rank][1], self._maxima[rank]))) for rank in known]
        total = sum(sizes[rank] for rank in known)
        if self._keep_global and sum(low) <= total <= sum(high):
            moved: tuple[float, ...] = apportion(total, self._times.equal_times(total, sizes), low, high)
        else:
            mean_s = float(np.nanmean(self._times.seconds(sizes)))
            moved = tuple(self._times.sizes_after(mean_s, sizes))
        wanted = list(sizes)
        for rank, value, least, most in zip(known, moved, low, high, strict=True):
            wanted[rank] = round(min(max(value, least), most))
        return tuple(wanted)


def pid_policy(config: Config, n_workers: int) -> PidPolicy:
    """The policy with the settings of section `policy.pid`."""
    return PidPolicy(n_workers, config.policy.pid.keep_global)
