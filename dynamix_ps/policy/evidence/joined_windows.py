"""Joins windows with the same sizes that are too short to measure, until they last a second together. Pure.

One switch of the operating system between processes takes a worker 10 ms or more. In a window of 0.1 s this is a
tenth of the time that is to be measured, and in a window of a second a hundredth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from statistics import median
from typing import Any

from dynamix_ps.messages import WindowRecord
from dynamix_ps.policy.base import View

ENOUGH_S = 1.0  # of training (chosen by us)

_SUMS = (
    "iterations", "samples", "duration_s", "compute_s", "push_pull_s", "wait_s", "input_s", "outside_s",
    "global_samples", "bytes_pushed", "gc_s", "units", "global_units",
)  # fmt: skip
_NEWEST = frozenset(
    {
        "rank", "window", "plan_version", "batch_size", "epoch", "trained_ratio", "lr_ratio", "lr_factor", "lr_decided",
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
        """All of them as one window, with what the newest one tells of plan, bounds and network."""
        newest = self._views[-1]
        if len(self._views) == 1:
            return newest
        of_ranks = zip(*(view.records for view in self._views), strict=True)
        return replace(newest, records=tuple(_joined([one for one in rows if one is not None]) for rows in of_ranks))

    def take(self) -> View:
        """The same, and begin anew."""
        joined = self.joined()
        self._views, self.duration_s = [], 0.0
        return joined


def trained_s(view: View) -> float:
    """Seconds of training in a window: the median over the workers. While one evaluates alone, nobody trains."""
    return median(record.duration_s for record in view.reported) - away_s(view.reported)


def away_s(records: Iterable[WindowRecord]) -> float:
    """How long the worker that did other things than training for longest did so."""
    return max((record.outside_s for record in records if record.outside_s > 0), default=0.0)


def _joined(records: Sequence[WindowRecord]) -> WindowRecord | None:
    """One record of several successive ones of a worker; None: there is none."""
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
