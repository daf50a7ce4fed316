"""Whatever windows come, a baseline gives valid sizes, and those that are not clean change nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given

from dynamix_ps.policy.base import Policy, View
from dynamix_ps.policy.baselines.goodput import GoodputPolicy
from dynamix_ps.policy.baselines.lbb import LbbPolicy
from dynamix_ps.policy.baselines.lbbsp import LbBspCpuPolicy, LbBspGpuPolicy
from dynamix_ps.policy.baselines.pid import PidPolicy
from dynamix_ps.policy.baselines.random_sizes import RandomSizesPolicy
from tests.policy_cluster import SmallCluster, any_views, assert_valid

BASELINES: dict[str, Callable[[int], Policy]] = {
    "goodput": GoodputPolicy,
    "lbb": LbbPolicy,
    "lbbsp_cpu": LbBspCpuPolicy,
    "lbbsp_gpu": LbBspGpuPolicy,
    "pid": lambda workers: PidPolicy(workers, keep_global=False),
    "pid that keeps B": lambda workers: PidPolicy(workers, keep_global=True),
    "random": lambda workers: RandomSizesPolicy(np.random.default_rng(0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BASELINES)
def test_any_windows_give_valid_sizes(name: str) -> None:
    @given(any_views(windows=6))
    def check(views: list[View]) -> None:
        policy = BASELINES[name](len(views[0].bounds))
        for view in views:
            assert_valid(policy.decide(view), view)

    check()


@pytest.mark.parametrize("name", BASELINES)
def test_windows_that_are_not_clean_change_nothing(name: str) -> None:
    seen = SmallCluster([100.0, 10.0], fixed_s=0.0).view()
    policy = BASELINES[name](2)
    paused = dataclasses.replace(seen, records=(dataclasses.replace(seen.reported[0], flagged=True), seen.records[1]))
    assert policy.decide(paused).batch_sizes == (64, 64)
    assert policy.decide(dataclasses.replace(seen, records=(None, None))).batch_sizes == (64, 64)
