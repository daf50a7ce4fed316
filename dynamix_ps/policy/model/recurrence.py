"""Forecasts how slow each worker will be in the coming window, where its speed changes with a period. Pure.

Work that comes back, such as another job, a garbage collector or a backup, makes a worker slow again and again. A
window of training is often over before anybody can react, and the reaction then hurts the next one. If the period is
known, the plan for the coming window can fit that window.

A level is the computing time of a worker over what its line says (compute_times.py). For every candidate period, the
forecast of a window is the mean of log levels in earlier periods, weighted by how near they lie in phase. Phases are
those of the beginnings of windows, in seconds, because the length of a window changes with B. The last half period does
not count: it says what is now, not what comes back.

Before a window is learned from, all candidates forecast it. So errors are out of sample. Two rival forecasts need no
period: the level stays, or it comes back to its mean. With y the change of the log level, and x and m the changes that
the candidate and the mean forecast, the candidate leaves the part 1 - r^2(x, y) of the changes unexplained, and the
mean 1 - r^2(m, y). Over n changes, the evidence for a period is the log likelihood ratio of both, less the log of the
number of candidates, as the best of many fits by chance, and less DOUBT:

    evidence = n/2 log((1 - r^2(m, y)) / (1 - r^2(x, y))) - log(candidates) - DOUBT

Without evidence above 0 the forecast is exactly today's level. Otherwise the change x counts with the coefficient of
the regression of y on x, at most 1, times the probability that the evidence gives. Once a recurrence ends, wrong
forecasts shrink the coefficient, and the windows of its time are soon too old. Slow drift, random bursts and noise give
no evidence. All of this is chosen by us.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.policy.model.compute_times import JUMP, LONGEST_S, SHORTEST_S
from dynamix_ps.policy.window_arrays import WindowArrays

KEPT = 128  # windows
FEWEST = 8  # windows before candidates are chosen
SHORTEST, LONGEST = 2.2, KEPT / 3  # periods, in windows; shorter ones look like longer ones
STEP = 0.03  # from one candidate to the next, relative
LONGEST_AGO = 8.0 * KEPT  # mean windows; anything further back counts as that far
GROUP = 9  # candidates that are judged by the same windows, those since the longest of their periods was seen
GROUPS = int(np.log(LONGEST / SHORTEST) / np.log1p(STEP) / GROUP)
CANDIDATES = GROUPS * GROUP
NEAR = 0.015  # of a period: windows this far apart in phase count as near
CHANGE = np.log1p(JUMP)  # of the log level; less counts as none
FEWEST_CHANGES = 4  # of one worker, before candidates are judged
FORGETTING = 0.995  # weight of a window's errors, one window later
LEAST_UNEXPLAINED = 0.02  # part of the changes; no forecast counts as better
DOUBT = 3.0  # log odds against a period, beforehand

# per mean window
_FREQUENCIES = (1 / (SHORTEST * (1 + STEP) ** np.arange(CANDIDATES))).astype(np.float32)
_OF_GROUPS = _FREQUENCIES[GROUP - 1 :: GROUP, None]  # of the longest period of each group
_LOG_CANDIDATES = np.log(CANDIDATES)
_SLOTS = np.arange(KEPT)

Array = NDArray[np.floating[Any]]
Mask = NDArray[np.bool_]
Chosen = NDArray[np.int64] | slice  # environments


class Recurrence:
    """Forecasts of all workers, shape (workers,) or (environments, workers).

    A window costs the same however long a run is, and hardly anything while no level changes.
    """

    def __init__(self, *shape: int) -> None:
        self._shape = shape
        workers = shape[-1]
        environments = int(np.prod(shape[:-1], dtype=np.int64))
        self._clock = _Clock(environments)
        self._environments = np.arange(environments)
        self._newest = -1  # slot of the newest window, the same in all environments
        self._windows = np.zeros(environments, dtype=np.int64)
        self._began_s = np.zeros((environments, KEPT))
        self._levels = np.zeros((environments, KEPT, workers), dtype=np.float32)  # logs; 0 in empty slots
        # of candidates: a mean window when they were chosen, which begins their sums; 0: not yet
        self._unit_s = np.zeros(environments)
        groups = environments, GROUPS
        self._candidate_sums = np.zeros((2, *groups, GROUP, workers), dtype=np.float32)  # of x^2, x y over the windows
        self._group_sums = np.zeros((4, *groups, workers), dtype=np.float32)  # of y^2, y != 0, m^2, m y
        self._changes = np.zeros((environments, workers), dtype=np.int64)
        self._quiet = np.zeros(environments, dtype=np.int64)  # windows since the last change

    def restart(self, which: Mask) -> None:
        """Forget some environments."""
        which = np.reshape(which, -1)
        self._clock.restart(which)
        for of_environment in (self._windows, self._levels, self._unit_s, self._changes, self._quiet):
            of_environment[which] = 0

    def forget(self, who: Mask) -> None:
        """Forget some workers, (..., workers); their level is 1 until they are measured again."""
        environments, workers = np.nonzero(who.reshape(self._changes.shape))
        self._levels[environments, :, workers] = 0
        self._candidate_sums[:, environments, :, :, workers] = 0
        self._group_sums[:, environments, :, workers] = 0
        self._changes[environments, workers] = 0

    def observe(self, window: WindowArrays, level: Array) -> Array:
        """Learn from the levels of a window, (..., workers). Returns the factor on them in the coming window.

        Call once per window, in order.
        """
        fresh = np.log(level).reshape(self._changes.shape).astype(np.float32)
        began_s = self._clock.advance(window)
        before = np.where(self._windows[:, None] > 0, self._levels[:, self._newest], fresh)
        change = fresh - before
        changed = np.abs(change) >= CHANGE
        self._changes += changed
        self._quiet = np.where(changed.any(axis=-1), 0, self._quiet + 1)
        judged = (self._changes.max(axis=-1) >= FEWEST_CHANGES) & (self._quiet < KEPT) & (self._unit_s > 0)
        which: Chosen = slice(None) if judged.all() else np.flatnonzero(judged)
        if not judged.any():
            self._keep(began_s, fresh)
            return np.ones(self._shape)
        gained = self._judged(which, began_s[which], before[which], np.where(changed, change, 0)[which])
        self._keep(began_s, fresh)
        forecast = self._forecast(which, gained, fresh[which])
        if forecast is None:
            return np.ones(self._shape)
        ahead = np.zeros(fresh.shape)
        ahead[which] = forecast
        return np.exp(ahead).reshape(self._shape)

    def _keep(self, began_s: Array, fresh: Array) -> None:
        """The window, and new candidates where windows last twice or half as long as when these were chosen."""
        self._newest = (self._newest + 1) % KEPT
        self._began_s[:, self._newest] = began_s
        self._levels[:, self._newest] = fresh
        self._windows += 1
        kept = np.minimum(self._windows, KEPT)
        first_s = self._began_s[self._environments, (self._newest + 1 - kept) % KEPT]
        mean_s = (self._clock.now_s - first_s) / kept
        anew = (kept >= FEWEST) & ((mean_s > 2 * self._unit_s) | (mean_s < self._unit_s / 2))
        if anew.any():
            self._unit_s[anew] = mean_s[anew]
            for sums in (self._candidate_sums, self._group_sums):
                sums[:, anew] = 0

    def _since(self, which: Chosen, until_s: Array) -> Array:
        """Mean windows from the beginning of each kept window, 0 for empty slots; (environments, KEPT)."""
        age = (self._newest - _SLOTS) % KEPT
        since = np.minimum((until_s[:, None] - self._began_s[which]) / self._unit_s[which, None], LONGEST_AGO)
        return np.where(age < self._windows[which, None], since, 0).astype(np.float32)

    def _judged(self, which: Chosen, began_s: Array, before: Array, change: Array) -> Array:
        """Let all candidates forecast this window, and add up how far off they were.

        Returns how much each explains of the changes, r^2(x, y) * sum y^2, (environments, GROUPS, GROUP, workers).
        """
        since = self._since(which, began_s)
        weights, whole = _weights(since[:, None] * _FREQUENCIES[:, None])
        levels, now, y = self._levels[which], before[:, None], change[:, None]
        x = weights @ levels
        x /= whole
        x -= now
        x *= np.abs(x) >= CHANGE
        x = x.reshape(-1, GROUPS, GROUP, x.shape[-1])
        covered = since.max(axis=-1)[:, None, None] * _OF_GROUPS >= 1
        if not (all_covered := bool(covered.all())):
            x *= covered[..., None, :]
        sums = self._candidate_sums[:, which]  # a view where all environments are judged, else a copy
        sums *= FORGETTING
        x_sq, x_y = sums
        x_y += x * y[:, None]
        x *= x
        x_sq += x
        if not isinstance(which, slice):
            self._candidate_sums[:, which] = sums

        kept = np.minimum(self._windows[which], KEPT)[:, None, None].astype(np.float32)
        m = levels.sum(axis=1, keepdims=True) / kept - now
        fresh = np.empty((4, *y.shape), dtype=np.float32)
        fresh[0], fresh[1], fresh[2], fresh[3] = y * y, y != 0, m * m, m * y
        sums = self._group_sums[:, which]
        sums *= FORGETTING
        sums += fresh if all_covered else covered * fresh
        if not isinstance(which, slice):
            self._group_sums[:, which] = sums

        gained: Array = np.maximum(x_y, 0)
        gained *= gained
        gained /= np.maximum(x_sq, np.float32(1e-9))
        return gained

    def _forecast(self, which: Chosen, gained: Array, fresh: Array) -> Array | None:
        """Changes of the log level in the coming window, (environments, workers); None where none is expected."""
        y_sq, count, m_sq, m_y = self._group_sums[:, which]
        by_mean = _unexplained(np.maximum(m_y, 0) ** 2 / np.maximum(m_sq, 1e-9), y_sq)
        odds = count / 2 * np.log(by_mean / _unexplained(gained.max(axis=2), y_sq))
        evidence = odds.max(axis=1) - _LOG_CANDIDATES - DOUBT
        rows, workers = found = np.nonzero(evidence > 0)
        if not rows.size:
            return None
        groups = odds.argmax(axis=1)[found]
        in_group = gained[rows, groups, :, workers].argmax(axis=-1)
        environments = self._environments[which][rows]
        since = self._since(environments, self._clock.next_s[environments])
        weights, whole = _weights(since * _FREQUENCIES[groups * GROUP + in_group, None])
        there = (weights * self._levels[environments, :, workers]).sum(axis=-1) / whole[:, 0]
        x = there - fresh[found]
        x_sq, x_y = self._candidate_sums[:, environments, groups, in_group, workers]
        share, sure = np.minimum(x_y / x_sq, 1), 1 / (1 + np.exp(-evidence[found]))
        ahead = np.zeros(fresh.shape)
        ahead[found] = np.where(np.abs(x) >= CHANGE, share * sure * x, 0.0)
        return ahead


class _Clock:
    """Seconds of training. Pauses are left out, as in the lengths of windows.

    `now_s` is the end of the last window, `next_s` the beginning that is expected of the next one: as long after the
    last one as that came after the one before it, because iterations in which plans change are in no window. What takes
    as long as a window was a window that is not to be learned from, and does not come again.
    """

    def __init__(self, environments: int) -> None:
        self.now_s, self.next_s = np.zeros((2, environments))
        self._next_iteration = np.zeros(environments)
        self._pace_s = np.zeros(environments)  # of an iteration in the last window

    def restart(self, which: Mask) -> None:
        for zero in (self.now_s, self.next_s, self._next_iteration, self._pace_s):
            zero[which] = 0.0

    def advance(self, window: WindowArrays) -> Array:
        """The beginning of this window. Iterations between windows count with the pace of the window before."""
        first, iterations, duration_s = (
            np.reshape(part, -1) for part in (window.first_iteration, window.iterations, window.duration_s)
        )
        duration_s = np.where((duration_s >= SHORTEST_S) & (duration_s <= LONGEST_S), duration_s, 0.0)
        gap = np.maximum(first - self._next_iteration, 0)
        began_s = self.now_s + gap * self._pace_s
        self.now_s = began_s + duration_s
        self.next_s = self.now_s + np.where(gap < iterations, gap * self._pace_s, 0.0)
        self._next_iteration = first + iterations
        self._pace_s = duration_s / np.maximum(iterations, 1)
        return np.asarray(began_s)


def _weights(back: Array) -> tuple[Array, Array]:
    """Weights of kept windows that lie `back` periods ago, (..., KEPT), and their sum.

    The period of a candidate is off by up to half a STEP, so windows far back count as less near in phase.
    """
    apart = np.rint(back)
    apart -= back
    apart *= apart
    near = back * np.float32(STEP / 2)
    near += np.float32(NEAR)
    near *= near
    near += apart
    near *= near
    weights = np.divide(back > 0.5, near, out=near)
    return weights, np.maximum(weights.sum(axis=-1, keepdims=True), np.float32(1e-30))


def _unexplained(explained: Array, whole: Array) -> Array:
    """Part of `whole`, the sum of squared changes, that is left."""
    return np.asarray(np.maximum(1 - explained / np.maximum(whole, 1e-9), 0) + LEAST_UNEXPLAINED)
