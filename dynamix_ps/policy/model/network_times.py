"""What the network adds to computing, from the windows seen so far. Pure.

`network_of` and `NetworkTimes` tell the workers' network times apart. A worker's chain is m_i + n_i: n_i is its exposed
network time, which computing does not hide, and m_i is halfway between its own computing time and the longest one,

    T = max_i (m_i + n_i)        m_i = (c_i + max_j c_j) / 2        n_i = max (network_i - hiding * m_i, 0)

because whoever is early pushes early, but pulls as late as all others, and so begins its next iteration late: half of
its lead is lost (dynamix_ps/sim/cluster/cost.py derives it). Computing hides network time in proportion to its own
length, so `network_i` and `hiding` stay what they are where computing times change, and n_i does not.

`StepTimes` predicts how long an iteration of all workers takes at untried sizes, by the step-time model of Pollux (OSDI
2021, section 3.2; AdaptDL), with one compute model per worker (compute_times.py):

    C = max_i t_i(b_i)                       the workers train in step
    T = (C^g + network^g)^(1/g)              1 <= g <= 10; 1: no overlap, 10: the network hides behind compute

As in AdaptDL, the fit minimises errors of log T, and a penalty of 1e-3 (g - 1)^2 keeps g small if the data leave it
open. Clusters change, so old windows drop out and the network time follows the newest ones. This and what follows the
network times over windows are chosen by us.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dynamix_ps.messages import NAN
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.model.compute_times import FORGETTING, JUMP, LONGEST_S, SHORTEST_S
from dynamix_ps.policy.model.compute_times import SMOOTHING as LEVEL_SMOOTHING
from dynamix_ps.policy.window_arrays import Array, WindowArrays, known_or, mean_known

SMOOTHING = 0.5  # weight of the newest window in network times, except after jumps
MOST_HIDING = 2 / 3  # of computing: the backward pass (arXiv 2001.08361, 2.1)
OVERLAPS = np.array([1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0])  # candidates for g
OVERLAP_PENALTY = 1e-3
_WINDOWS_KEPT = 64
_AGES = np.arange(_WINDOWS_KEPT)[::-1]
_WEIGHTS, _RECENT = FORGETTING**_AGES, (1 - LEVEL_SMOOTHING) ** _AGES  # of windows; the last is the newest


@dataclass(frozen=True, slots=True)
class WindowNetworkTimes:
    """Network times per iteration in one window, (..., workers); NaN for a worker that did not compute."""

    network_s: Array  # with what computing hides
    exposed_s: Array  # beyond computing
    hiding: Array  # (...,), seconds hidden in a second of computing


def network_of(window: WindowArrays, compute_s: Array) -> WindowNetworkTimes:
    """The network times of a window in which the workers computed for `compute_s`, (..., workers), per iteration.

    Workers of a ring all have the same transfer time (window_arrays.py).
    """
    iteration_s = window.duration_s[..., None] / window.iterations[..., None]
    return network_between(known_or(window.push_busy) * iteration_s, iteration_s, compute_s)


def network_between(transfer_s: Array, iteration_s: Array, compute_s: Array) -> WindowNetworkTimes:
    """The network times of iterations of `iteration_s`, (..., 1); the others are (..., workers).

    Also NaN for times beyond LONGEST_S, which were not measured.

    A worker's data are on the way for transfer_i seconds. No chain is longer than the iteration, and at least one is as
    long: max_i (m_i + transfer_i - hiding m_i) = T. This gives `hiding`. What an iteration takes beyond that counts for
    all workers alike, all of it where transfers are not measured.
    """
    computes = np.isfinite(compute_s)
    halfway_s = np.maximum(halfway(np.where(computes, compute_s, 0.0)), SHORTEST_S)
    part = np.where(computes, (halfway_s + transfer_s - iteration_s) / halfway_s, 0.0)
    hiding = np.minimum(np.maximum(known_or(part).max(axis=-1), 0.0), MOST_HIDING)
    own_s = exposed_s(transfer_s, hiding, halfway_s)
    longest_s = np.where(computes, halfway_s + own_s, -np.inf).max(axis=-1, keepdims=True)
    more_s = np.maximum(iteration_s - longest_s, 0.0)
    known = computes & (own_s + more_s <= LONGEST_S)
    return WindowNetworkTimes(
        np.where(known, transfer_s + more_s, np.nan), np.where(known, own_s + more_s, np.nan), hiding
    )


def halfway(compute_s: Array) -> Array:
    """m_i of computing times c_i, (..., workers)."""
    return np.asarray(compute_s / 2 + compute_s.max(axis=-1, keepdims=True) / 2)


def exposed_s(network_s: Array, hiding: Array, halfway_s: Array) -> Array:
    """n_i, (..., workers); `hiding` is (...,)."""
    return np.asarray(np.maximum(network_s - hiding[..., None] * halfway_s, 0.0))


def typical(values: Array, weights: Array) -> Array:
    """The smallest value, (...,), beyond which no more than half of the weights lie; both are (..., workers)."""
    workers = values.shape[-1]
    rows = np.arange(0, values.size, workers)
    order = values.argsort(axis=-1, kind="stable").reshape(-1, workers) + rows[:, None]  # in the flattened arrays
    upto = np.broadcast_to(weights, values.shape).reshape(-1)[order].cumsum(axis=-1)
    middle = (upto >= upto[:, -1:] / 2).argmax(axis=-1)
    return np.asarray(values.reshape(-1)[order.reshape(-1)[rows + middle]].reshape(values.shape[:-1]))


class NetworkTimes:
    """Tracks the network time that all workers have in common, and each worker's lasting difference from it.

    Workers that share a narrow link take turns at being first through it. Their times then differ by up to a third of
    an iteration, and a split that followed these differences would change in every window. So with the mean d of a
    worker's differences and the mean q of their squares, d * d^2 / q counts: all of a lasting difference, little of one
    that comes and goes. A jump in the same direction in two windows in a row means that a link has changed, and counts
    at once.
    """

    def __init__(self, *shape: int) -> None:
        self._common_s = np.full(shape[:-1], NAN)
        self._own_s, self._own_sq = np.full(shape, NAN), np.full(shape, NAN)
        self._jumped_s = np.zeros(shape)  # in the last window, from the mean difference

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Forget some environments."""
        self._common_s[which] = NAN
        self.forget(np.broadcast_to(which[..., None], self._own_s.shape))

    def forget(self, who: NDArray[np.bool_]) -> None:
        """Forget some workers, (..., workers)."""
        for unknown in (self._own_s, self._own_sq):
            unknown[who] = NAN
        self._jumped_s[who] = 0.0

    def observe(self, seen_s: Array, iteration_s: Array) -> None:
        """Take in a window: `network_s` per worker (NaN: unknown), and the iteration time, (...,)."""
        common_s = mean_known(seen_s, NAN)
        own_s: Array = seen_s - common_s[..., None]
        jump_s = JUMP * iteration_s
        at_once = np.abs(common_s - self._common_s) > jump_s
        self._common_s = _followed(self._common_s, common_s, at_once)

        away_s = own_s - self._own_s
        jumped_s = np.where(np.abs(away_s) > jump_s[..., None], away_s, 0.0)
        again = np.asarray(jumped_s * self._jumped_s > 0)
        self._jumped_s = np.where(again, 0.0, jumped_s)
        both = np.array((self._own_s, self._own_sq)), np.array((own_s, own_s**2))
        self._own_s, self._own_sq = _followed(*both, again)

    @property
    def seconds(self) -> Array:
        """`network_s` of every worker, (..., workers); NaN before the first measurement."""
        lasting = self._own_s**2 / np.where(self._own_sq > 0, self._own_sq, 1.0)
        return np.asarray(self._common_s[..., None] + self._own_s * lasting)


def _followed(before: Array, fresh: Array, at_once: NDArray[np.bool_]) -> Array:
    """`before` moved towards `fresh`: stays `before` where `fresh` is unknown, is `fresh` where `before` is unknown."""
    moved = np.where(np.isfinite(before) & ~at_once, before + SMOOTHING * (fresh - before), fresh)
    return np.where(np.isfinite(fresh), moved, before)


class StepTimes:
    """Predicts T from C for a live cluster. Fits lazily, at the first use after a window."""

    def __init__(self) -> None:
        # by window, the newest last: T, and for every g the power of C and the network time that gives T
        self._columns = np.empty((1 + 2 * len(OVERLAPS), 2 * _WINDOWS_KEPT))
        self._end = 0  # of the columns so far
        self._fitted = True
        self._overlap, self._network_s = 1.0, 0.0
        self.step_s = math.nan  # of the last window, the median over the workers

    def observe(self, model: ClusterModel) -> None:
        """Learn from the window that the model has just observed."""
        times_s = model.known_compute_s
        longest_s = float(times_s.max(where=np.isfinite(times_s), initial=0.0))
        self.step_s = step_s = typical_step_s(model.window)
        if longest_s > 0 and SHORTEST_S <= step_s <= LONGEST_S:
            self._append(longest_s, max(step_s, longest_s))
            self._fitted = False

    def iteration_s(self, longest_compute_s: ArrayLike) -> Array:
        """T from C, of any shape."""
        if not self._fitted:
            self._fit()
        powers = np.asarray(longest_compute_s) ** self._overlap + self._network_s**self._overlap
        return np.asarray(powers ** (1 / self._overlap))

    def _append(self, compute_s: float, total_s: float) -> None:
        if self._end == self._columns.shape[1]:
            self._end = _WINDOWS_KEPT - 1
            self._columns[:, : self._end] = self._columns[:, -self._end :]
        column = self._columns[:, self._end]
        column[0] = total_s
        column[1 : 1 + len(OVERLAPS)] = compute_s**OVERLAPS
        column[1 + len(OVERLAPS) :] = _apart(compute_s, total_s, OVERLAPS)
        self._end += 1

    def _fit(self) -> None:
        kept = self._columns[:, max(self._end - _WINDOWS_KEPT, 0) : self._end]
        total, powered, network = kept[0], kept[1 : 1 + len(OVERLAPS)], kept[1 + len(OVERLAPS) :]
        powers = OVERLAPS[:, None]
        weights, recent = _WEIGHTS[-len(total) :], _RECENT[-len(total) :]
        mean = (network * weights).sum(axis=1, keepdims=True) / weights.sum()
        errors = np.log((powered + mean**powers) ** (1 / powers) / total)
        cost = (errors**2 * weights).sum(axis=1) / weights.sum() + OVERLAP_PENALTY * (OVERLAPS - 1) ** 2
        best = int(cost.argmin())
        self._overlap = float(OVERLAPS[best])
        self._network_s = float((network[best] * recent).sum() / recent.sum())
        self._fitted = True


def typical_step_s(window: WindowArrays) -> float:
    """Median over the workers of a live cluster of the duration of an iteration; NaN if no worker reports it."""
    steps_s: list[float] = (window.worker_duration_s / np.maximum(window.iterations, 1)).tolist()
    return median([step_s for step_s in steps_s if math.isfinite(step_s)] or [math.nan])


def _apart(compute: float, total: float, power: Array) -> Array:
    """The network time that gives T from C. Computed relative to T, so that high powers do not underflow."""
    return np.asarray(total * np.maximum(1 - (compute / total) ** power, 0.0) ** (1 / power))
