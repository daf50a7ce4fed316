"""The model of the cluster. It observes each window once; a policy and its safety net share it. Pure.

    compute   how long each worker computes at untried sizes    compute_times.py
    noise     the gradient noise scale                          efficiency.py

Models that only some policies need are separate: what the network adds for each worker, and how long an iteration then
takes (network_times.py).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dynamix_ps.apportion import Whole, split
from dynamix_ps.policy.cluster_model.compute_times import ComputeMeter, ComputeTimes, sensible
from dynamix_ps.policy.cluster_model.efficiency import NoiseScale
from dynamix_ps.policy.window_arrays import Array, WindowArrays


class ClusterModel:
    """Shape (workers,) for a live cluster, (environments, workers) in the simulator.

    `window`, `computing_s` and `compute_s` describe the last window. The last two, (..., workers), are the computing
    seconds in the whole window and per iteration, as a CPU quota sustains them.
    """

    window: WindowArrays
    computing_s: Array
    compute_s: Array

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.compute = ComputeTimes(*shape)
        self.noise = NoiseScale(*shape[:-1])
        self._meter = ComputeMeter(*shape)

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Forget some environments; their next window is the first of another run."""
        self.compute.restart(which)
        self.noise.restart(which)
        self._meter.restart(which)

    def observe(self, window: WindowArrays) -> None:
        """Take in a clean window. Call once per window, in order."""
        iterations = np.maximum(window.iterations, 1)[..., None]
        self.window = window
        self.computing_s = self._meter.observe(window)
        self.compute_s = self.computing_s / iterations
        self.compute.observe(window.samples / iterations, self.compute_s)
        self.noise.observe(window)

    def balanced_s(self, global_batches: ArrayLike) -> Array:
        """The computing time that all workers need when each global batch is split so that they finish together.

        For a live cluster; same shape as `global_batches`. Workers of unknown speed keep their planned size. The others
        (at least one) share the rest within their bounds. If the bounds do not allow that rest, the nearest one
        that they allow is shared.
        """
        totals = np.maximum(np.asarray(global_batches) - self.unmeasured, 0)
        known, low, high = self.compute.known, self.window.low, self.window.high
        rates = self.compute.rates_per_s[known]
        from_s, until_s = self.compute.seconds((low, high))[:, known]  # a worker's size grows between these times
        times = np.concatenate((from_s, until_s))
        order = np.argsort(times, kind="stable")
        slopes = np.concatenate((rates, -rates))[order].cumsum()  # samples per second after each of these times
        times = times[order]
        grown = np.concatenate(([0.0], (slopes[:-1] * np.diff(times)).cumsum()))
        together_s = np.interp(np.asarray(totals, dtype=np.float64), low[known].sum() + grown, times)
        return np.asarray(np.maximum(together_s, from_s.max()))  # all wait for a slow worker at its lower bound

    def shares(self, global_batch: int) -> Whole:
        """The same split of `global_batch` in whole samples; workers of unknown speed keep their planned size."""
        known, low, high = self.compute.known, self.window.low, self.window.high
        together_s = self.balanced_s(global_batch)
        wanted = np.clip((together_s - self.compute.fixed_s) * self.compute.rates_per_s, low, high)[known]
        inside = np.clip(max(global_batch - self.unmeasured, 0), low[known].sum(), high[known].sum())
        sizes = self.window.planned.copy()
        sizes[known] = split(inside, wanted, low[known], high[known])
        return sizes

    @property
    def known_compute_s(self) -> Array:
        """`compute_s`, NaN where the last window has no sensible measurement."""
        return np.where(sensible(self.window.samples, self.compute_s), self.compute_s, np.nan)

    @property
    def unmeasured(self) -> int:
        """Samples per iteration planned for workers of unknown speed, for a live cluster."""
        return int(self.window.planned[~self.compute.known].sum())
