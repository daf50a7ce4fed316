"""All policies measure the same quantities in the same way."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

from dynamix_ps.policy.base import Policy, View
from dynamix_ps.policy.baselines.goodput import GoodputPolicy
from dynamix_ps.policy.baselines.lbb import LbbPolicy
from dynamix_ps.policy.baselines.lbbsp import LbBspCpuPolicy
from dynamix_ps.policy.baselines.pid import PidPolicy
from dynamix_ps.policy.baselines.proportional import ProportionalPolicy
from dynamix_ps.policy.model.compute_times import ComputeMeter
from dynamix_ps.policy.window_arrays import arrays_of
from tests.policy_cluster import WINDOW, SmallCluster


def under_quota(view: View, needs_s: tuple[float, ...]) -> View:
    """Workers that seem equally fast, but need so many CPU seconds per iteration of their one core; seen once."""
    records = (
        dataclasses.replace(
            one, cpu_ratio=WINDOW * need_s / one.duration_s, cpu_cores=1.0, throttled=0.1 if view.window == 0 else 0.0
        )
        for one, need_s in zip(view.reported, needs_s, strict=True)
    )
    return dataclasses.replace(view, records=tuple(records))


def test_what_a_quota_sustains_counts_and_is_remembered() -> None:
    cluster, meter = SmallCluster([640.0, 640.0], fixed_s=0.0), ComputeMeter(2)
    for _ in range(2):
        sizes, times_s = meter.per_iteration(arrays_of(under_quota(cluster.view(), (0.05, 0.4))))
        assert sizes.tolist() == [64, 64]
        assert times_s.tolist() == pytest.approx([0.1, 0.4])


def test_who_did_not_report_or_compute_is_unknown() -> None:
    seen = SmallCluster([100.0, 100.0, 100.0]).view()
    idle = dataclasses.replace(seen.reported[1], samples=0)
    sizes, times_s = ComputeMeter(3).per_iteration(
        arrays_of(dataclasses.replace(seen, records=(None, idle, seen.records[2])))
    )
    assert np.isnan(sizes).tolist() == np.isnan(times_s).tolist() == [True, True, False]
    absurd = (dataclasses.replace(seen.reported[0], compute_s=math.inf), *seen.records[1:])
    _, times_s = ComputeMeter(3).per_iteration(arrays_of(dataclasses.replace(seen, records=absurd)))
    assert np.isnan(times_s).tolist() == [True, False, False]


@pytest.mark.parametrize(
    "make", [ProportionalPolicy, PidPolicy, LbBspCpuPolicy, LbbPolicy, GoodputPolicy], ids=lambda make: make.__name__
)
def test_no_contender_takes_a_worker_that_has_rested_for_a_fast_one(make: Callable[[int], Policy]) -> None:
    """Both seem to take as long, but the quota of the second sustains a quarter."""
    cluster = SmallCluster([640.0, 640.0], fixed_s=0.0, low=8)
    first, second = make(2).decide(under_quota(cluster.view(), (0.1, 0.4))).batch_sizes
    assert first > 1.5 * second
