"""What a run knows of its workers' speeds that the next run of the same job can begin with. Pure.

    ProfileMeter    measures a profile, as the model of the cluster does
    first_sizes     the split of the global batch with which all workers finish together, by a profile
    lateness        how far each worker contradicts a profile

A profile says nothing of the global batch. So the learning rate is what it would be without one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dynamix_ps.apportion import largest_change, split
from dynamix_ps.policy.base import View
from dynamix_ps.policy.model.advice import SMOOTHING, balance_with_late
from dynamix_ps.policy.model.compute_times import LONGEST_S, Balance, ComputeMeter, ComputeTimes
from dynamix_ps.policy.model.network_times import NetworkTimes, network_of, typical
from dynamix_ps.policy.window_arrays import Array, arrays_of
from dynamix_ps.rpc.plan_rules import Bounds

LEAST_CHANGE = 0.05  # relative; first sizes that differ by less from those of the cluster file are not worth a plan
MOST_HIDDEN = 0.99  # seconds of network time that a second of computing hides
ENOUGH = 2  # windows of a second or more of which a profile is made (chosen by us)


@dataclass(frozen=True, slots=True)
class Profile:
    """One value per worker, in the order of ranks, and `hiding` (network_times.py)."""

    fixed_s: tuple[float, ...]  # computing per iteration, at any size
    per_sample_s: tuple[float, ...]
    network_s: tuple[float, ...]  # gradients on their way, per iteration
    at_once: tuple[int | None, ...]  # what fits into memory at once; None: no limit is known
    hiding: float

    @classmethod
    def of(cls, told: Mapping[str, Any], n_workers: int) -> Profile:
        """From JSON's types. Raises ValueError, KeyError or TypeError if it cannot be a profile of so many workers."""
        fixed_s, network_s = (_numbers(told, name, n_workers, 0.0) for name in ("fixed_s", "network_s"))
        at_once = told["at_once"]
        if len(at_once) != n_workers or not all(one is None or (type(one) is int and one > 0) for one in at_once):
            raise ValueError(f"at_once: got {at_once!r:.100}, expected {n_workers} whole numbers or null")
        per_sample_s = _numbers(told, "per_sample_s", n_workers, 1e-12)
        (hiding,) = _numbers({"hiding": [told["hiding"]]}, "hiding", 1, 0.0, MOST_HIDDEN)
        return cls(fixed_s, per_sample_s, network_s, tuple(at_once), hiding)

    def seconds(self, sizes: ArrayLike) -> Array:
        """Computing seconds of each worker in an iteration with these sizes."""
        return np.asarray(np.array(self.fixed_s) + np.array(self.per_sample_s) * np.asarray(sizes))


def _numbers(
    told: Mapping[str, Any], name: str, count: int, least: float, most: float = LONGEST_S
) -> tuple[float, ...]:
    found = told[name]
    if len(found) != count or not all(type(one) in (int, float) and least <= one <= most for one in found):
        raise ValueError(f"{name}: got {told[name]!r:.100}, expected {count} numbers of {least:g}..{most:g}")
    return tuple(map(float, found))


def first_sizes(profile: Profile, sizes: tuple[int, ...], bounds: Bounds, links: bool) -> tuple[int, ...]:
    """The split of the global batch of `sizes` with which all workers of a profile finish together.

    `sizes` itself if another split would hardly differ, or if the bounds do not allow their sum.

    Args:
        sizes: first sizes of the cluster file, one per worker of the profile.
        bounds: smallest and largest size of each.
        links: whether workers with slow links get less.
    """
    low, high = np.array(bounds).T
    total, hiding = np.array(sum(sizes)), np.array(profile.hiding)
    if not low.sum() <= total <= high.sum():
        return sizes
    balanced = Balance(np.array(profile.fixed_s), 1 / np.array(profile.per_sample_s))
    if links:
        network_s = np.array(profile.network_s)
        balanced = balance_with_late(total, balanced, network_s, typical(network_s, balanced.rates_per_s), hiding)
    wanted = np.maximum(balanced.sizes(balanced.together_s(total)), 1e-9)
    found = tuple(int(size) for size in split(total, wanted, low, high))
    return found if largest_change(sizes, found) > LEAST_CHANGE else sizes


def lateness(profile: Profile, sizes: ArrayLike, times_s: Array) -> Array:
    """How many times as long each worker computes as the profile says, compared with the others. 1: as it says.

    A cluster that is slower as a whole needs no other split.

    Args:
        sizes, times_s: of every worker per iteration; NaN where that was not measured. Then NaN is returned, and where
            nobody else was measured.
    """
    logs = np.log(times_s / profile.seconds(sizes))
    known = np.isfinite(logs)
    others = (logs[known].sum() - logs) / (known.sum() - 1) if known.sum() > 1 else np.nan
    return np.asarray(np.exp(logs - others))


class ProfileMeter:
    """Measures the workers in clean windows of a second or more."""

    def __init__(self, n_workers: int) -> None:
        self._meter, self._lines = ComputeMeter(n_workers), ComputeTimes(n_workers)
        self._network = NetworkTimes(n_workers)
        self._hiding: Array = np.zeros(())
        self._at_once: Array = np.full(n_workers, np.nan)
        self._windows = np.zeros(n_workers, dtype=np.int64)

    def observe(self, view: View) -> tuple[Array, Array]:
        """Take in a window. Samples and computing seconds per iteration, both NaN for workers not measured."""
        window = arrays_of(view)
        if not window.all_there:  # another machine may compute there later
            self._meter.forget(~window.there)
            self._lines.forget(~window.there)
            self._network.forget(~window.there)
            self._windows[~window.there] = 0
        sizes, times_s = self._meter.per_iteration(window)
        self._lines.observe(sizes, times_s)
        self._windows += self._lines.seen
        found = network_of(window, times_s)
        self._network.observe(found.network_s, window.duration_s / window.iterations)
        self._hiding = self._hiding + SMOOTHING * (found.hiding - self._hiding)
        for record in view.reported:
            self._at_once[record.rank] = record.at_once
        return sizes, times_s

    def profile(self, ranks: Sequence[int]) -> Profile | None:
        """Of these workers, as they are now; None where too few windows are known of one."""
        who = list(ranks)
        if (self._windows[who] < ENOUGH).any():
            return None
        lines, network_s = self._lines.now, np.nan_to_num(self._network.seconds)
        at_once = (None if math.isnan(one) else int(one) for one in self._at_once[who].tolist())
        return Profile(
            tuple(lines.fixed_s[who].tolist()),
            tuple((1 / lines.rates_per_s[who]).tolist()),
            tuple(network_s[who].tolist()),
            tuple(at_once),
            float(np.minimum(self._hiding, MOST_HIDDEN)),
        )
