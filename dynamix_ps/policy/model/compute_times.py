"""Predicts how long workers compute at untried batch sizes, from the windows seen so far. Pure.

    t_i(b) = level_i * (fixed_i + per_sample_i * b)

There is one model per worker, as in Cannikin (arXiv 2402.05302). The fit minimises relative errors, as in AdaptDL.
Chosen by us:

- Sizes often differ by less than times scatter; a line through such points means nothing. So a prior with the weight of
  PRIOR_WINDOWS windows expects the fixed part to be FIXED_PART of the mean time. A worker that was seen at one size
  only has exactly that fixed part. The fixed part is at most LARGEST_FIXED of the mean time; otherwise a worker whose
  time hardly seems to grow would get nearly all samples.
- The first window is short and may contain one-off work. Its weight beside others is small (FIRST).
- Clusters change: old windows lose weight (FORGETTING), and level_i follows the newest ones (SMOOTHING), at once if it
  jumps (JUMP). The line is fitted to times divided by the level. So a worker that becomes slow, and therefore gets
  fewer samples, does not seem to have a large fixed part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dynamix_ps.apportion import Whole
from dynamix_ps.policy.window_arrays import WindowArrays

Array = NDArray[np.float64]
Times = NDArray[np.floating[Any]] | float

JUMP = 0.15  # a relative change beyond this is a new speed, not noise
SMOOTHING = 0.25  # weight of the newest window in the level: times scatter by 4 %
FORGETTING = 0.97  # weight of a window, one window later, in the line
SAME_SIZE = 0.05  # a smaller relative change of a size counts as none
FIXED_PART = 0.2  # of the mean time, with a standard deviation of 0.3
PRIOR_WINDOWS = 0.02  # times scatter by 4 % from window to window: (0.04 / 0.3)^2
LARGEST_FIXED = 0.8  # of the mean time
FIRST = 0.05  # weight of a worker's first window
SHORTEST_S, LONGEST_S = 1e-6, 1e6  # times outside this range count as not measured


@dataclass(frozen=True)
class Lines:
    """What each worker computes at any size, as long as its level stays; (..., workers).

    Workers that were never measured have a NaN time per sample.
    """

    level: Array
    line_fixed_s: Array
    line_per_sample_s: Array

    @cached_property
    def fixed_s(self) -> Array:
        """Seconds per iteration, at any size."""
        return self.level * self.line_fixed_s

    @cached_property
    def rates_per_s(self) -> Array:
        """Samples per second beyond the fixed part; NaN for workers never measured."""
        return 1 / (self.level * self.line_per_sample_s)

    def seconds(self, sizes: ArrayLike) -> Array:
        """Computing seconds per iteration at these sizes, (..., workers); NaN for workers never measured."""
        return np.asarray(self.level * (self.line_fixed_s + self.line_per_sample_s * np.asarray(sizes)))


class ComputeTimes:
    """Models of all workers, shape (workers,) or (environments, workers).

    Attributes:
        known: which workers were ever measured; all_known: whether all were.
        seen: which workers the last window measured sensibly.
        now: the lines at the levels of the last window.
        coming: the lines at the levels that are expected in the next window, the same without `expect`.
        jumped: whose level followed the last window at once, because it had changed by more than `jump`.
    """

    now: Lines
    coming: Lines
    seen: NDArray[np.bool_]

    def __init__(self, *shape: int, jump: float = JUMP) -> None:
        self._jump = jump
        self.jumped = np.zeros(shape, dtype=np.bool_)
        self._sums = np.zeros((5, *shape))  # of w, w b, w b^2, w t, w b t with w = 1 / t^2
        self._size, self._time_s = np.ones(shape), np.ones(shape)  # in the last window
        self._ahead: Array | float = 1.0  # levels in the next window over those of the last one
        self._adopt(Lines(np.ones(shape), np.zeros(shape), np.full(shape, np.nan)))

    def forget(self, who: NDArray[np.bool_]) -> None:
        """Forget some workers, (..., workers)."""
        self._sums[:, who] = 0.0
        now = self.now
        self._adopt(
            Lines(
                np.where(who, 1.0, now.level),
                np.where(who, 0.0, now.line_fixed_s),
                np.where(who, np.nan, now.line_per_sample_s),
            )
        )

    def observe(self, sizes: ArrayLike, times_s: ArrayLike) -> None:
        """Samples and computing seconds per iteration of every worker; one without samples or time changes nothing."""
        size, time_s = np.asarray(sizes, dtype=np.float64), np.asarray(times_s, dtype=np.float64)
        self.seen = seen = sensible(size, time_s)
        everyone = bool(seen.all())
        if not everyone:
            size, time_s = np.where(seen, size, 1.0), np.where(seen, time_s, 1.0)
        own = self._own_change(size, time_s, self.known if everyone else seen & self.known)
        self.jumped = np.abs(own - 1) > self._jump
        level = self.coming.level * np.where(self.jumped, own, 1 + SMOOTHING * (own - 1))
        if not everyone:
            level = np.where(seen, level, self.now.level)

        line_s = time_s / level
        weight = line_s**-2
        if not self.all_known:
            weight = np.where(self.known, 1.0, FIRST) * weight
        fresh = np.empty(self._sums.shape)
        fresh[0], fresh[1], fresh[2] = weight, weight * size, weight * size**2
        fresh[3], fresh[4] = weight * line_s, fresh[1] * line_s
        if everyone:
            self._sums *= FORGETTING
            self._sums += fresh
        else:
            self._sums = np.where(seen, FORGETTING * self._sums + fresh, self._sums)
        there = self._sums[0] > 0
        fixed_s, per_sample_s = _lines(self._sums if there.all() else np.where(there, self._sums, 1.0))
        if everyone:
            self._size, self._time_s = size, time_s
        else:
            self._size, self._time_s = np.where(seen, size, self._size), np.where(seen, time_s, self._time_s)
            fixed_s = np.where(seen, fixed_s, self.now.line_fixed_s)
            per_sample_s = np.where(seen, per_sample_s, self.now.line_per_sample_s)
        self._adopt(Lines(level, fixed_s, per_sample_s))

    def expect(self, ahead: Array) -> None:
        """Expect levels in the next window that are `ahead` times those of the last one. Call after `observe`."""
        self._ahead = ahead
        self.coming = replace(self.now, level=self.now.level * ahead)

    def _adopt(self, lines: Lines) -> None:
        self.now = self.coming = lines
        self._ahead = 1.0
        self.known = np.isfinite(lines.line_per_sample_s)
        self.all_known = bool(self.known.all())

    def _own_change(self, size: Array, time_s: Array, comparable: NDArray[np.bool_]) -> Array:
        """By what factor each worker itself is slower than expected; 1 if its new size explains its new time.

        `coming` is what was expected. On a line through the last window, with any fixed part, the time changes by a
        factor between 1 and that of the size. The worker itself causes what lies outside this range.
        """
        size_before, coming_s, expected_s = self._size, self._time_s * self._ahead, self.coming.seconds(size)
        if not (everyone := bool(comparable.all())):
            size_before = np.where(comparable, size_before, size)
            coming_s, expected_s = np.where(comparable, coming_s, time_s), np.where(comparable, expected_s, time_s)
        grown, longer = size / size_before, time_s / coming_s
        moved = np.abs(grown - 1) > SAME_SIZE
        least, most = np.minimum(grown, 1) * (1 - self._jump), np.maximum(grown, 1) * (1 + self._jump)
        explained = moved & (longer > least) & (longer < most) & (self._ahead == 1)
        return np.where(explained if everyone else explained | ~comparable, 1.0, time_s / expected_s)


class ComputeMeter:
    """What an iteration costs each worker, communication left out; shape (workers,) or (environments, workers).

    Every policy measures with it, the rivals of the learned policy too. Otherwise a rival could mistake a rested worker
    for a fast one (see `sustained_s`) and lose because of the emulation of speeds.
    """

    def __init__(self, *shape: int) -> None:
        self._throttled = np.zeros(shape)  # the largest value so far

    def forget(self, who: NDArray[np.bool_]) -> None:
        """Forget some workers, (..., workers)."""
        self._throttled[who] = 0.0

    def observe(self, window: WindowArrays) -> NDArray[np.floating[Any]]:
        """Computing seconds in the window, as a CPU quota sustains them. Call once per window."""
        self._throttled = np.fmax(self._throttled, window.throttled)
        if not (self._throttled > 0).any():
            return window.compute_s
        cpu_s = window.cpu_ratio * window.worker_duration_s
        return sustained_s(window.compute_s, cpu_s, window.cpu_cores, self._throttled)

    def per_iteration(self, window: WindowArrays) -> tuple[Array, Array]:
        """Observe the window. Samples and computing seconds per iteration, both NaN where not measured sensibly."""
        iterations = np.maximum(window.iterations, 1)[..., None]
        sizes, times_s = window.samples / iterations, self.observe(window) / iterations
        seen = sensible(sizes, times_s)
        return np.where(seen, sizes, np.nan), np.where(seen, times_s, np.nan)


def sensible(sizes: Any, times_s: Any) -> NDArray[np.bool_]:
    """Whether a worker has samples and a computing time in the plausible range."""
    return np.asarray((sizes > 0) & (times_s >= SHORTEST_S) & (times_s <= LONGEST_S))


def sustained_s(compute_s: Times, cpu_s: Times, cpu_cores: Times, throttled: Times) -> NDArray[np.floating[Any]]:
    """How long workers would compute if they never waited: `compute_s` seconds, in which `cpu_s` CPU seconds were used.

    A CPU quota stops a process that has used up its part of a period, and lets one that has waited run at full speed.
    A worker that waits for others therefore seems fast, gets more samples and is stopped. In the long run it needs its
    CPU seconds over the cores of the quota. That time counts if it is longer than the measured one. Without a quota,
    CPU time says nothing, because threads may spin while they wait. `throttled` shows whether there is a quota: it is
    the largest part of any window so far in which the worker was stopped. One window alone may not show it.
    """
    longer = np.fmax(compute_s, cpu_s / np.where(np.asarray(cpu_cores) > 0, cpu_cores, np.nan))
    return np.where(np.asarray(throttled) > 0, longer, compute_s)


class Balance:
    """Splits with which all workers finish computing together.

    Attributes:
        fixed_s, rates_per_s: (..., workers), must be known.
        rate_per_s: samples per second of all workers, (...,).
    """

    def __init__(self, fixed_s: NDArray[np.floating[Any]], rates_per_s: NDArray[np.floating[Any]]) -> None:
        self.fixed_s, self.rates_per_s = fixed_s, rates_per_s
        self._fixed_samples = (fixed_s * rates_per_s).sum(axis=-1)
        self.rate_per_s = rates_per_s.sum(axis=-1)

    def together_s(self, totals: ArrayLike) -> Array:
        """The computing time at which all workers finish together, (...,)."""
        return np.asarray((np.asarray(totals) + self._fixed_samples) / self.rate_per_s)

    def sizes(self, together_s: Array) -> Array:
        """The sizes for such a time, (..., workers).

        They are real numbers >= 0, and sum to the total if no worker's size would be negative. The caller rounds them
        and applies bounds (apportion.split).
        """
        return np.asarray(np.maximum((together_s[..., None] - self.fixed_s) * self.rates_per_s, 0.0))


def together_within(totals: ArrayLike, low: Whole, rates_per_s: Array, from_s: Array, until_s: Array) -> Array:
    """The computing time, same shape as `totals`, with which workers come to each total within their bounds.

    The others share what a worker at a bound cannot take; one at its lower bound may need longer than this time. A
    total that the bounds do not allow has the time of the nearest one that they allow.

    Args:
        low: smallest sizes, (workers,).
        from_s, until_s: computing times at the smallest and the largest size, (workers,); in between a size grows by
            `rates_per_s`.
    """
    times = np.concatenate((from_s, until_s))
    order = times.argsort(kind="stable")
    slopes = np.concatenate((rates_per_s, -rates_per_s))[order].cumsum()  # samples per second after each of these times
    times = times[order]
    grown = np.zeros(len(times))
    (slopes[:-1] * (times[1:] - times[:-1])).cumsum(out=grown[1:])
    return np.asarray(np.interp(np.asarray(totals, dtype=np.float64), low.sum() + grown, times))


def balance(
    totals: ArrayLike, fixed_s: NDArray[np.floating[Any]], rates_per_s: NDArray[np.floating[Any]]
) -> tuple[Array, Array]:
    """The time, (...,), and the sizes, (..., workers), of a single `Balance`."""
    balanced = Balance(fixed_s, rates_per_s)
    together_s = balanced.together_s(totals)
    return together_s, balanced.sizes(together_s)


def _lines(sums: Array) -> tuple[Array, Array]:
    """(fixed, per sample) of every worker, both at least 0, by least squares; see the module docstring.

    The prior is one more observation: FIXED_PART of the mean time at size 0.
    """
    weight, size, size_sq, time, product = sums
    mean_s, mean_size = time / weight, size / weight
    expected_s = FIXED_PART * mean_s
    prior = PRIOR_WINDOWS / mean_s**2
    whole = weight + prior
    slope = (product - size * (time + prior * expected_s) / whole) / (size_sq - size**2 / whole)
    fixed = (time + prior * expected_s - slope * size) / whole
    fixed = np.minimum(fixed, LARGEST_FIXED * mean_s)
    slope = np.where(fixed > 0, (mean_s - fixed) / mean_size, product / size_sq)
    return np.maximum(fixed, 0.0), slope
