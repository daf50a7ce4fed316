from __future__ import annotations

import math

import numpy as np

from dynamix_ps.policy.baselines.lbb import LbbPolicy, straggler_effect
from tests.policy_cluster import WINDOW, SmallCluster


def effect(cluster: SmallCluster) -> float:
    return straggler_effect(cluster.compute_s(cluster.plan.batch_sizes))


def test_straggler_effect_is_the_spread_over_the_mean() -> None:
    assert straggler_effect(np.array([1.0, 3.0, 2.0, math.nan])) == 1.0
    assert straggler_effect(np.array([math.nan])) == 0.0


def test_far_from_balance_it_solves_for_equal_times_and_keeps_the_global_batch() -> None:
    cluster = SmallCluster([300.0, 500.0, 1200.0], fixed_s=0.0, start=128, low=8)
    assert cluster.step(LbbPolicy(3)).batch_sizes == (58, 96, 230)


def test_a_second_solution_knows_the_fixed_part() -> None:
    cluster = SmallCluster([160.0, 3200.0], fixed_s=1.0, start=1024, low=8, high=4096)
    policy = LbbPolicy(2)
    cluster.step(policy)
    assert cluster.plan.batch_sizes == (310, 1738)  # as if all of the time were per sample
    for _ in range(2):
        before = cluster.plan.batch_sizes
        cluster.step(policy)
        assert before[0] - cluster.plan.batch_sizes[0] == WINDOW  # observing: fine moves only
    assert effect(cluster) > 0.3
    cluster.step(policy)
    assert effect(cluster) < 0.1  # what was expected of the fixed part still counts a little
    assert cluster.plan.global_batch == 2048


def test_nearly_balanced_moves_one_sample_per_iteration_at_most() -> None:
    cluster = SmallCluster([2400.0, 2400.0, 2000.0], fixed_s=0.0, start=256, low=8)
    policy = LbbPolicy(3)
    assert 0.05 < effect(cluster) < 0.3
    cluster.step(policy)
    assert cluster.plan.batch_sizes == (256 + WINDOW, 256, 256 - WINDOW)
    cluster.run(policy, 4)
    assert effect(cluster) < 0.05
    assert cluster.plan.global_batch == 3 * 256


def test_a_fine_move_never_makes_the_fastest_the_slowest() -> None:
    cluster = SmallCluster([100.0, 80.0], fixed_s=0.0, start=32, low=8)
    cluster.step(LbbPolicy(2))
    times_s = cluster.compute_s(cluster.plan.batch_sizes)
    assert cluster.plan.batch_sizes[0] > 32
    assert times_s[0] <= times_s[1]


def test_balanced_workers_are_left_alone() -> None:
    cluster = SmallCluster([100.0, 97.0], fixed_s=0.0)
    policy = LbbPolicy(2)
    for _ in range(3):
        assert cluster.step(policy).batch_sizes == (64, 64)


def test_bounds_stop_a_fine_move() -> None:
    cluster = SmallCluster([100.0, 80.0], fixed_s=0.0, start=64, high=66)
    assert cluster.step(LbbPolicy(2)).batch_sizes == (66, 62)
