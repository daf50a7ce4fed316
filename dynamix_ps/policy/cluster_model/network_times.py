"""Network time that a worker adds to its computing: told from one window, and followed over windows. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.messages import NAN
from dynamix_ps.policy.cluster_model.compute_times import JUMP, LONGEST_S
from dynamix_ps.policy.window_arrays import Array, WindowArrays, mean_known

SMOOTHING = 0.5  # weight of the newest window, but for jumps (chosen by us)


def exposed_s(window: WindowArrays, compute_s: Array) -> tuple[Array, Array]:
    """Seconds per iteration beyond a worker's computing, (..., workers), and seconds that computing hides, (...,).

    `compute_s`, (..., workers), is how long the workers compute in an iteration.

    NaN for a worker that did not compute, and for times beyond LONGEST_S, which were not measured.

    Data are on the way for transfer_i seconds, of which the overlap with computing hides h, the same for all. Nobody
    takes longer than the iteration, c_i + transfer_i - h <= T, and somebody takes as long: that tells h. Where
    transfers are not measured, all have the same, T - max c_i; around a ring they come here alike (window_arrays.py).
    Chosen by us.
    """
    iterations = window.iterations[..., None]
    iteration_s = window.duration_s[..., None] / iterations
    transfer_s = np.where(np.isfinite(window.push_busy), window.push_busy, 0.0) * iteration_s
    computes = np.isfinite(compute_s)
    alone_s = np.where(computes, compute_s + transfer_s, -np.inf)
    hidden_s = np.maximum(alone_s.max(axis=-1, keepdims=True) - iteration_s, 0.0)
    own_s = np.maximum(transfer_s - hidden_s, 0.0)
    longest_s = np.where(computes, compute_s + own_s, -np.inf).max(axis=-1, keepdims=True)
    exposed = own_s + np.maximum(iteration_s - longest_s, 0.0)
    return np.where(computes & (exposed <= LONGEST_S), exposed, np.nan), hidden_s[..., 0]


class NetworkTimes:
    """Follows what all workers have in common, and what one has beyond it where that lasts (chosen by us).

    Workers behind one narrow link take turns at being the first through it, by up to a third of an iteration, and a
    split that follows would change in every window. So of a worker's mean difference d from the others, and the mean q
    of its squares, what counts is d * d^2 / q: all of a difference that stays, little of one that comes and goes. What
    jumps the same way in two windows in a row is a link that has changed, and counts at once.
    """

    def __init__(self, *shape: int) -> None:
        self._common_s = np.full(shape[:-1], NAN)
        self._own_s, self._own_sq = np.full(shape, NAN), np.full(shape, NAN)
        self._jumped_s = np.zeros(shape)  # in the last window, away from the mean difference

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Forget some environments."""
        for unknown in (self._common_s, self._own_s, self._own_sq):
            unknown[which] = NAN
        self._jumped_s[which] = 0.0

    def observe(self, seen_s: Array, iteration_s: Array) -> None:
        """Take in a window: exposed seconds per worker, NaN where not known, and how long an iteration took, (...,)."""
        common_s = mean_known(seen_s, NAN)
        own_s: Array = seen_s - common_s[..., None]
        at_once = np.abs(common_s - self._common_s) > JUMP * iteration_s
        self._common_s = _followed(self._common_s, common_s, at_once)

        away_s = own_s - self._own_s
        jumped_s = np.where(np.abs(away_s) > JUMP * iteration_s[..., None], away_s, 0.0)
        again = np.asarray(jumped_s * self._jumped_s > 0)
        self._jumped_s = np.where(again, 0.0, jumped_s)
        self._own_s = _followed(self._own_s, own_s, again)
        self._own_sq = _followed(self._own_sq, own_s**2, again)

    @property
    def seconds(self) -> Array:
        """Of every worker, (..., workers); NaN until it is known."""
        lasting = self._own_s**2 / np.where(self._own_sq > 0, self._own_sq, 1.0)
        return np.asarray(self._common_s[..., None] + self._own_s * lasting)


def _followed(before: Array, fresh: Array, at_once: NDArray[np.bool_]) -> Array:
    """`before` moved towards `fresh`, which changes nothing where it is not known, and is all there is at first."""
    moved = np.where(np.isfinite(before) & ~at_once, before + SMOOTHING * (fresh - before), fresh)
    return np.where(np.isfinite(fresh), moved, before)
