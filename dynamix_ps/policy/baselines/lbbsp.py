"""LB-BSP, semi-dynamic load balancing (SoCC 2020; arXiv 1806.02508): B stays, its split follows the workers.

CPU clusters. Time is linear in the batch, so shares are those of the speeds v_i forecast for the next step:

    b_i = B v_i / sum v        v_i by NARX from past speeds, CPU and memory use; here speed_forecast.py

GPU clusters. Time is not linear below saturation, so no speed is estimated. In every watch window

    the straggler, slowest, gives `step` samples to the leader, fastest with memory to spare
    where that turns a move back: step <- step / 2, watch window <- 2 x watch window

Read in summaries and the abstract; where they are silent the choice is ours: no dead-band, since new sizes cost no
restart here; the watch window counts windows of the job, 1 at first, 4 at most; the first step is a quarter of the mean
size, the smallest one sample. *Turned back* means that the straggler is the leader of the move before. Clusters change
while a job runs: a third move from the same straggler in a row, and each after it, undoes one halving and one doubling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dynamix_ps.config.schema import Config
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.policy.baselines.proportional import shares_by_speed
from dynamix_ps.policy.baselines.speed_forecast import SpeedForecast
from dynamix_ps.policy.cluster_model.compute_times import ComputeMeter
from dynamix_ps.policy.window_arrays import WindowArrays, arrays_of

FIRST_STEP = 0.25  # of the mean size
LONGEST_WATCH = 4  # windows
SAME_STRAGGLER = 3  # moves in a row that tell of a change


class LbBspCpuPolicy:
    """Shares by forecast speed."""

    name = "lbbsp"

    def __init__(self, n_workers: int) -> None:
        self._meter = ComputeMeter(n_workers)
        self._forecast = SpeedForecast(n_workers)

    def decide(self, view: View) -> Decision:
        """New sizes, or the present ones where the window is not clean or bounds forbid this B."""
        if not view.clean:
            return Decision(view.plan.batch_sizes)
        window = arrays_of(view)
        sizes, times_s = self._meter.per_iteration(window)
        self._forecast.observe(sizes / times_s, np.column_stack((window.cpu_ratio, window.memory_ratio)))
        speeds = self._forecast.next_per_s().tolist()
        return Decision(shares_by_speed(view, [speed if math.isfinite(speed) else None for speed in speeds]))


@dataclass(frozen=True, slots=True)
class _Move:
    """From whom to whom."""

    straggler: int
    leader: int


class LbBspGpuPolicy:
    """Moves samples from the straggler to the leader."""

    name = "lbbsp"

    def __init__(self, n_workers: int) -> None:
        self._meter = ComputeMeter(n_workers)
        self._halvings = 0  # of the step, and doublings of the watch window
        self._last: _Move | None = None
        self._in_a_row = 0  # moves from that straggler
        self._version = -1  # of the plan that the times belong to
        self._watched: list[tuple[float, ...]] = []  # computing seconds of its windows, by rank

    def decide(self, view: View) -> Decision:
        """New sizes at the end of a watch window, the present ones in all others."""
        keep = Decision(view.plan.batch_sizes)
        if not view.clean:
            return keep
        if view.plan.version != self._version:
            self._version, self._watched = view.plan.version, []
        window = arrays_of(view)
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
        """Samples that the next move is worth."""
        return max(round(FIRST_STEP * view.plan.global_batch / len(view.bounds) * 0.5**self._halvings), 1)


def _from_slowest_to_fastest(view: View, window: WindowArrays, times_s: list[float]) -> _Move | None:
    """Who can give and who can take; None where nobody would gain."""
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
    """The present sizes after a move of so many samples, or as many as the bounds of both allow."""
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
    """The rule of section `policy.lbbsp`."""
    return LbBspCpuPolicy(n_workers) if config.policy.lbbsp.rule == "cpu" else LbBspGpuPolicy(n_workers)
