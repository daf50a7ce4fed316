"""What windows measure, and how much it scatters: joined windows, and the speeds of workers in them. Pure.

Windows with the same sizes that are too short to measure are joined until they last a second together. One switch of
the operating system between processes takes a worker 10 ms or more. In a window of 0.1 s this is a tenth of the time
that is to be measured, and in a window of a second a hundredth.

The scatter of a value is taken from differences between successive windows: their median, over 0.954, which is its
ratio to the standard deviation of a normally distributed value. So a lasting change of speed, which is one large
difference, hardly counts as scatter. Until some differences are known, an assumption counts as much as ASSUMED
differences: RELATIVE for any window, and SHORT_S over its length for single events. All numbers are chosen by us.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from statistics import median
from typing import Any

import numpy as np

from dynamix_ps.messages import WindowRecord
from dynamix_ps.policy.base import View
from dynamix_ps.policy.model.compute_times import JUMP, SMOOTHING, ComputeMeter, ComputeTimes
from dynamix_ps.policy.window_arrays import Array, arrays_of

SURE = 3.0  # standard deviations; with one window little is known of them (chosen by us)
RELATIVE = 0.05  # times of windows of some seconds scatter by 4 %
SHORT_S = 0.05  # single events: where processes share cores, workers differ by as much over a second
ASSUMED = 3  # differences
KEPT_DIFFERENCES = 9  # differences, the newest
LARGEST = 2.0  # times the assumption; larger differences are changes of speed, not scatter
_MEDIAN_OF_DIFFERENCE = 0.954  # 0.6745 * sqrt(2)

# a difference of two times has twice the variance of one; that of a time and a smoothed mean of earlier ones has less
AS_DIFFERENCE = math.sqrt(2 / (1 + SMOOTHING / (2 - SMOOTHING)))

ENOUGH_S = 1.0  # of training (chosen by us)

_SUMS = (
    "iterations", "samples", "duration_s", "compute_s", "push_pull_s", "wait_s", "input_s", "outside_s",
    "global_samples", "bytes_pushed", "gc_s", "units", "global_units",
)  # fmt: skip
_NEWEST = frozenset(
    {
        "rank", "window", "plan_version", "batch_size", "epoch", "trained_ratio", "lr_ratio", "lr_factor",
        "lr_guard", "lr_batch", "at_once", "cpu_cores", "memory_bytes", "memory_ratio", "gpu_memory_ratio",
        "network_source", "network_age_s", "flagged",
    }
)  # fmt: skip
# all others are means over the iterations
_MEANS = tuple(
    one.name
    for one in fields(WindowRecord)
    if one.name not in _NEWEST and one.name not in _SUMS and one.name != "first_iteration"
)
_summed, _averaged = attrgetter(*_SUMS), attrgetter(*_MEANS)


class JoinedWindows:
    """The clean windows since the last plan, or since `take`."""

    def __init__(self) -> None:
        self._views: list[View] = []
        self.duration_s = 0.0  # of training in these windows

    def add(self, view: View) -> None:
        """Take in a clean window. Windows with other sizes are forgotten."""
        if self._views and self._views[-1].plan.batch_sizes != view.plan.batch_sizes:
            self._views, self.duration_s = [], 0.0
        self._views.append(view)
        self.duration_s += trained_s(view)

    def joined(self) -> View:
        """All windows as one, with plan, bounds and network of the newest window."""
        newest = self._views[-1]
        if len(self._views) == 1:
            return newest
        of_ranks = zip(*(view.records for view in self._views), strict=True)
        return replace(newest, records=tuple(_joined([one for one in rows if one is not None]) for rows in of_ranks))

    def take(self) -> View:
        """The joined window; then begin anew."""
        joined = self.joined()
        self._views, self.duration_s = [], 0.0
        return joined


def trained_s(view: View) -> float:
    """Seconds of training in a window: the median over the workers. While one evaluates alone, nobody trains."""
    return median(record.duration_s for record in view.reported) - away_s(view.reported)


def away_s(records: Iterable[WindowRecord]) -> float:
    """The longest time that a worker spent on other things than training."""
    return max((record.outside_s for record in records if record.outside_s > 0), default=0.0)


def _joined(records: Sequence[WindowRecord]) -> WindowRecord | None:
    """Successive records of a worker as one record; None if there are none."""
    if len(records) < 2:
        return records[0] if records else None
    sums = map(_known_sum, zip(*map(_summed, records), strict=True))
    weights = [record.iterations for record in records]
    means = (_known_mean(values, weights) for values in zip(*map(_averaged, records), strict=True))
    together: dict[str, Any] = {**dict(zip(_SUMS, sums, strict=True)), **dict(zip(_MEANS, means, strict=True))}
    return replace(records[-1], first_iteration=records[0].first_iteration, **together)


def _known_sum(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) if known else math.nan


def _known_mean(values: Sequence[float], weights: Sequence[int]) -> float:
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if not math.isnan(value)]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else math.nan


def assumed(duration_s: float) -> float:
    """The relative standard deviation of a time that was measured over `duration_s`, before anything is known."""
    return RELATIVE + SHORT_S / max(duration_s, 1e-6)


class Scatter:
    """The scatter of logarithms of measured values, of any shape, from differences of two that should be equal."""

    def __init__(self) -> None:
        self._differences: deque[Array] = deque(maxlen=KEPT_DIFFERENCES)

    def see(self, difference: Array) -> None:
        """Take in a difference of two values, NaN where unknown."""
        self._differences.append(np.abs(difference))

    def deviation(self, prior: float) -> Array:
        """The standard deviation of one value. `prior`: what is assumed of it (`assumed`)."""
        if not self._differences:
            return np.asarray(prior)
        differences = np.array(self._differences)
        typical = np.median(np.where(np.isnan(differences), _MEDIAN_OF_DIFFERENCE * prior, differences), axis=0)
        known = len(differences)
        measured = typical / _MEDIAN_OF_DIFFERENCE
        found = np.sqrt((ASSUMED * prior**2 + known * measured**2) / (ASSUMED + known))
        return np.asarray(np.minimum(found, LARGEST * prior))


class ComputeSpeeds:
    """Computing times of all workers, compared with what windows before let expect."""

    def __init__(self, n_workers: int) -> None:
        self._meter, self._lines = ComputeMeter(n_workers), ComputeTimes(n_workers)
        self._scatter = Scatter()

    def observe(self, view: View) -> bool:
        """Take in a window. Returns whether a worker's speed has jumped."""
        window = arrays_of(view)
        if not window.all_there:  # another machine may compute there later
            self._meter.forget(~window.there)
            self._lines.forget(~window.there)
        sizes, times_s = self._meter.per_iteration(window)
        surprise = _relative(times_s / self._lines.coming.seconds(sizes))
        self._lines.observe(sizes, times_s)
        beyond = np.maximum(SURE * self.deviation(view), JUMP)
        self._scatter.see(AS_DIFFERENCE * surprise)
        return bool((np.abs(surprise) > beyond).any())

    def deviation(self, view: View) -> Array:
        """The standard deviation of the logarithm of each worker's time in a window such as this one."""
        return self._scatter.deviation(assumed(trained_s(view)))

    def lateness(self, view: View) -> Array:
        """By how many assumed standard deviations each worker computes longer than most, in a window by itself."""
        return _relative(self._meter.per_iteration(arrays_of(view))[1]) / assumed(trained_s(view))

    def rate_per_s(self, view: View, sizes: tuple[int, ...]) -> float:
        """Samples per second with these sizes: computing takes as long as its lines say, the rest as long as in `view`.

        NaN where no speed is known.
        """
        now_s, then_s = self._lines.now.seconds(view.plan.batch_sizes), self._lines.now.seconds(sizes)
        known = np.isfinite(now_s)
        if not known.any():
            return math.nan
        iteration_s = trained_s(view) / view.reported[0].iterations
        return sum(sizes) / max(iteration_s + float(then_s[known].max() - now_s[known].max()), 1e-9)


def _relative(times_s: Array) -> Array:
    """Logarithms of times over their geometric mean. So delays that all workers share are left out."""
    logs = np.log(times_s)
    known = np.isfinite(logs)
    return logs - (logs[known].mean() if known.any() else 0.0)
