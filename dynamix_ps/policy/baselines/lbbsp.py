"""LB-BSP, semi-dynamic load balancing (SoCC 2020; arXiv 1806.02508): B stays; its split follows the workers' speeds.

CPU clusters. Time is linear in the batch, so shares are proportional to the speeds v_i forecast for the next step:

    b_i = B v_i / sum v        v_i by NARX from past speeds, CPU and memory use; here speed_forecast.py

GPU clusters. Time is not linear below saturation, so no speed is estimated. In every watch window

    the straggler (the slowest worker) gives `step` samples to the leader (the fastest worker with memory to spare)
    if this reverses the previous move: step <- step / 2, watch window <- 2 x watch window

The sources are summaries and the abstract. What they leave open is chosen by us:

- There is no dead-band, because new sizes cost no restart here.
- The watch window counts windows of the job: 1 at first, 4 at most.
- The first step is a quarter of the mean size, the smallest is one sample.
- A move is reversed if the straggler is the leader of the previous move.
- Clusters change while a job runs. So the third move in a row from the same straggler, and each one after it, undoes
  one halving and one doubling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dynamix_ps.config.schema import Config
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.policy.baselines.proportional import shares_by_speed
from dynamix_ps.policy.baselines.speed_forecast import SpeedForecast
from dynamix_ps.policy.model.compute_times import ComputeMeter
from dynamix_ps.policy.window_arrays import WindowArrays, arrays_of

FIRST_STEP = 0.25  # of the mean size
LONGEST_WATCH = 4  # windows
SAME_STRAGGLER = 3  # this many moves in a row mean that the cluster has changed


class LbBspCpuPolicy:
    """Splits B in proportion to forecast speeds."""

    name = "lbbsp"

    def __init__(self, n_workers: int) -> None:
        self._meter = ComputeMeter(n_workers)
        self._forecast = SpeedForecast(n_workers)

    def decide(self, view: View) -> Decision:
        """New sizes, or the present ones if the window is not clean or the bounds forbid this B."""
        if not view.clean:
            return Decision(view.plan.batch_sizes)
        window = arrays_of(view)
        if not window.all_there:  # another machine may compute there later
            self._meter.forget(~window.there)
            self._forecast.forget(~window.there)
        sizes, times_s = self._meter.per_iteration(window)
        self._forecast.observe(sizes / times_s, np.column_stack((window.cpu_ratio, window.memory_ratio)))
        speeds = self._forecast.next_per_s().tolist()
        return Decision(shares_by_speed(view, [speed if math.isfinite(speed) else None for speed in speeds]))


@dataclass(frozen=True, slots=True)
class _Move:
    """A transfer of samples between two workers, by rank."""

    straggler: int
    leader: int


class LbBspGpuPolicy:
    """Moves samples from the straggler to the leader."""

    name = "lbbsp"

    def __init__(self, n_workers: int) -> None:
        self._meter = ComputeMeter(n_workers)
        self._halvings = 0  # of the step; also counts doublings of the watch window
        self._last: _Move | None = None
        self._in_a_row = 0  # moves from the same straggler
        self._planned: tuple[int, ...] = ()  # the sizes that the times belong to
        self._watched: list[tuple[float, ...]] = []  # computing seconds by rank, one entry per window of it

    def decide(self, view: View) -> Decision:
        """New sizes at the end of a watch window, else the present ones."""
        keep = Decision(view.plan.batch_sizes)
        if not view.clean:
            return keep
        if view.plan.batch_sizes != self._planned:
            self._planned, self._watched = view.plan.batch_sizes, []
        window = arrays_of(view)
        if not window.all_there:
            self._meter.forget(~window.there)
        _, window_s = self._meter.per_iteration(window)
        self._watched.append(tuple(window_s.tolist()))
        if len(self._watched) < min(2**self._halvings, LONGEST_WATCH):
            return keep
        times_s = np.array(self._watched).mean(axis=0)
        self._watched = []
        move = _from_slowest_to_fastest(view, window, times_s.tolist())
        if move is None:
            return keep
        if self._last and move.straggler == self._last.leader and self._step(view) > 1:
            self._halvings += 1
        self._in_a_row = self._in_a_row + 1 if self._last and move.straggler == self._last.straggler else 1
        if self._in_a_row >= SAME_STRAGGLER:
            self._halvings = max(self._halvings - 1, 0)
        self._last = move
        return Decision(_moved(view, move, self._step(view)))

    def _step(self, view: View) -> int:
        """Number of samples in the next move."""
        there = sum(high > 0 for _, high in view.bounds)
        return max(round(FIRST_STEP * view.plan.global_batch / there * 0.5**self._halvings), 1)


def _from_slowest_to_fastest(view: View, window: WindowArrays, times_s: list[float]) -> _Move | None:
    """The move from the slowest worker that can give to the fastest that can take; None if it would gain nothing."""
    sizes = view.plan.batch_sizes
    full = window.memory_full.tolist()
    known = [rank for rank, time_s in enumerate(times_s) if math.isfinite(time_s)]
    givers = [rank for rank in known if sizes[rank] > view.bounds[rank][0]]
    takers = [rank for rank in known if sizes[rank] < view.bounds[rank][1] and not full[rank]]
    if not givers or not takers:
        return None
    straggler, leader = max(givers, key=times_s.__getitem__), min(takers, key=times_s.__getitem__)
    return _Move(straggler, leader) if times_s[straggler] > times_s[leader] else None


def _moved(view: View, move: _Move, samples: int) -> tuple[int, ...]:
    """The present sizes after a move of `samples`, or fewer if the bounds of either worker demand it."""
    sizes = list(view.plan.batch_sizes)
    spare, room = (
        sizes[move.straggler] - view.bounds[move.straggler][0],
        view.bounds[move.leader][1] - sizes[move.leader],
    )
    samples = min(samples, spare, room)
    sizes[move.straggler] -= samples
    sizes[move.leader] += samples
    return tuple(sizes)


def lbbsp_policy(config: Config, n_workers: int) -> LbBspCpuPolicy | LbBspGpuPolicy:
    """The policy that section `policy.lbbsp` selects."""
    return LbBspCpuPolicy(n_workers) if config.policy.lbbsp.rule == "cpu" else LbBspGpuPolicy(n_workers)
