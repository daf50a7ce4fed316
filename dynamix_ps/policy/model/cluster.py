"""The model of the cluster. It observes each window once; a policy and its safety net share it. Pure.

    compute   how long each worker computes at untried sizes, now and in the coming window    compute_times.py
              and recurrence.py
    filled    sizes whose last tile is full, on hardware that computes whole tiles            tiles.py
    noise     the gradient noise scale                          efficiency.py

Models that only some policies need are separate: what the network adds for each worker, and how long an iteration then
takes (network_times.py).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dynamix_ps.apportion import Whole, split
from dynamix_ps.policy.base import Policy
from dynamix_ps.policy.model.compute_times import ComputeMeter, ComputeTimes, Lines, together_within
from dynamix_ps.policy.model.efficiency import NoiseScale
from dynamix_ps.policy.model.recurrence import Recurrence
from dynamix_ps.policy.model.tiles import TileFinder
from dynamix_ps.policy.window_arrays import Array, WindowArrays


class ClusterModel:
    """Shape (workers,) for a live cluster, (environments, workers) in the simulator.

    `window`, `computing_s` and `compute_s` describe the last window. The last two, (..., workers), are the computing
    seconds in the whole window and per iteration, as a CPU quota sustains them.

    `effects` tells whether to look for tiles, and for levels that come back with a period. That takes time, in vain
    where there are none.
    """

    window: WindowArrays
    computing_s: Array
    compute_s: Array

    def __init__(self, *shape: int, effects: bool = True) -> None:
        self.shape = shape
        self.compute = ComputeTimes(*shape)
        self.noise = NoiseScale(*shape[:-1])
        self._meter = ComputeMeter(*shape)
        self._recurrence = Recurrence(*shape) if effects else None
        self._tiles = TileFinder(*shape) if effects else None

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Forget some environments; their next window is the first of another run."""
        self.noise.restart(which)
        if self._recurrence:
            self._recurrence.restart(which)
        self._forget(np.broadcast_to(which[..., None], self.shape))

    def _forget(self, who: NDArray[np.bool_]) -> None:
        """Forget how long some workers, (..., workers), compute."""
        self.compute.forget(who)
        self._meter.forget(who)
        if self._tiles:
            self._tiles.forget(who)

    def observe(self, window: WindowArrays) -> None:
        """Take in a clean window. Call once per window, in order.

        Who is not there is forgotten: in the place of a lost worker another machine may compute later.
        """
        if not window.all_there:
            self._forget(~window.there)
            if self._recurrence:
                self._recurrence.forget(~window.there)
        iterations = np.maximum(window.iterations, 1)[..., None]
        self.window = window
        self.computing_s = self._meter.observe(window)
        self.compute_s = self.computing_s / iterations
        sizes = window.samples / iterations
        self.compute.observe(sizes, self.compute_s)
        if self._tiles:
            self._tiles.observe(sizes, self.compute_s, self.compute.seen)
        if self._recurrence:
            ahead = self._recurrence.observe(window, self.compute.now.level)
            if (ahead != 1).any():
                self.compute.expect(ahead)
        self.noise.observe(window)

    def balanced_s(self, global_batches: ArrayLike, lines: Lines) -> Array:
        """The computing time that all workers need when each global batch is split so that they finish together.

        `lines` are `compute.now` or `compute.coming`.

        For a live cluster; same shape as `global_batches`. Workers of unknown speed keep their planned size. The others
        (at least one) share the rest within their bounds. If the bounds do not allow that rest, the nearest one
        that they allow is shared.
        """
        totals = np.maximum(np.asarray(global_batches) - self.unmeasured, 0)
        known, low, high, rates = self.compute.known, self.window.low, self.window.high, lines.rates_per_s
        from_s, until_s = lines.seconds((low, high))  # a worker's size grows between these times
        if not self.compute.all_known:
            low, rates, from_s, until_s = low[known], rates[known], from_s[known], until_s[known]
        together_s = together_within(totals, low, rates, from_s, until_s)
        return np.asarray(np.maximum(together_s, from_s.max()))  # all wait for a slow worker at its lower bound

    def shares(self, global_batch: int, lines: Lines) -> Whole:
        """The same split of `global_batch` in whole samples; workers of unknown speed keep their planned size."""
        known, low, high = self.compute.known, self.window.low, self.window.high
        together_s = self.balanced_s(global_batch, lines)
        wanted = np.minimum(np.maximum((together_s - lines.fixed_s) * lines.rates_per_s, low), high)
        if not self.compute.all_known:
            wanted, low, high = wanted[known], low[known], high[known]
        inside = np.asarray(min(max(global_batch - self.unmeasured, low.sum(), 0), high.sum()))
        if self.compute.all_known:
            return split(inside, wanted, low, high)
        sizes = self.window.planned.copy()
        sizes[known] = split(inside, wanted, low, high)
        return sizes

    def filled(self, sizes: Whole) -> Whole:
        """Sizes of present workers with their last tile filled, (..., workers), within the bounds."""
        if not self._tiles:
            return sizes
        return np.where(self.window.present, self._tiles.filled(sizes, self.window.high), sizes)

    @property
    def known_compute_s(self) -> Array:
        """`compute_s`, NaN where the last window has no sensible measurement."""
        return np.where(self.compute.seen, self.compute_s, np.nan)

    @property
    def unmeasured(self) -> int:
        """Samples per iteration planned for workers of unknown speed, for a live cluster."""
        return 0 if self.compute.all_known else int(self.window.planned[~self.compute.known].sum())


@runtime_checkable
class HasClusterModel(Policy, Protocol):
    """A policy that lets its model of the cluster observe every clean window that it decides by."""

    model: ClusterModel
