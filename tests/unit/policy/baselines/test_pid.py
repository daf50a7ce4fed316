from __future__ import annotations

import dataclasses
import math

import pytest

from benchmarks.studies.clusters import pid_published
from dynamix_ps.messages import Plan
from dynamix_ps.policy.baselines.pid import PidPolicy
from tests.policy_cluster import SmallCluster


def test_the_published_step() -> None:
    """Two workers at 64 with times 1 and 3 go to 128 and 42.7, and the global batch moves along."""
    cluster = SmallCluster([64.0, 64 / 3], fixed_s=0.0, start=64)
    assert PidPolicy(2).decide(cluster.view()).batch_sizes == (128, 43)
    assert PidPolicy(2, keep_global=True).decide(cluster.view()).batch_sizes == (96, 32)


def test_times_are_equal_after_a_few_steps_and_noise_moves_nothing() -> None:
    cluster = SmallCluster([1000.0, 500.0, 167.0], fixed_s=0.02, start=128, low=8, high=4096, jitter=0.005)
    policy = PidPolicy(3)
    cluster.run(policy, 10)
    plan = cluster.plan
    times = cluster.compute_s(plan.batch_sizes)
    assert (times.max() - times.min()) / times.mean() < 0.06
    assert plan.global_batch > 1.2 * 384  # as published: B is not kept
    cluster.run(policy, 5)
    assert cluster.plan == plan


@pytest.mark.parametrize("keep_global", [False, True])
def test_times_that_scatter_teach_equal_workers_no_maximum(keep_global: bool) -> None:
    """As far as times scatter at worst on a machine that is shared, for a minute of windows."""
    cluster = SmallCluster([200.0, 200.0, 200.0], fixed_s=0.02, start=64, low=16, high=512, jitter=0.08)
    policy = PidPolicy(3, keep_global)
    for _ in range(100):
        cluster.step(policy)
        assert cluster.plan.global_batch > 0.9 * 192


def test_a_size_at_which_throughput_fell_is_never_passed_again() -> None:
    cluster = SmallCluster([100.0, 100.0], fixed_s=0.0, start=64, low=16)
    policy = PidPolicy(2)
    cluster.run(policy, 2)
    cluster.speeds[1] = 50.0
    cluster.step(policy)
    assert cluster.plan.batch_sizes[0] > 64
    cluster.speeds[0] = 60.0  # at that size its memory is full
    cluster.step(policy)
    assert cluster.plan.batch_sizes[0] <= 64
    cluster.speeds[0] = 800.0
    for _ in range(6):
        cluster.step(policy)
        assert cluster.plan.batch_sizes[0] <= 64


def test_a_throughput_that_falls_without_growth_teaches_no_maximum() -> None:
    cluster = SmallCluster([200.0, 100.0], fixed_s=0.0, start=64, low=16)
    policy = PidPolicy(2)
    cluster.step(policy)
    cluster.step(policy)
    cluster.speeds[0] = 60.0  # interference, at a size that it has mastered
    cluster.run(policy, 3)
    cluster.speeds[0] = 200.0
    cluster.run(policy, 3)
    assert cluster.plan.batch_sizes[0] > 64


def test_times_of_an_earlier_plan_are_forgotten() -> None:
    cluster = SmallCluster([100.0, 100.0], fixed_s=0.0, start=64)
    policy = PidPolicy(2)
    for _ in range(5):
        policy.decide(cluster.view())
    cluster.plan = Plan(1, (64, 64))
    cluster.speeds = [100.0, 50.0]
    assert policy.decide(cluster.view()).batch_sizes == (96, 48)  # as if nothing had been seen before


def test_absurd_times_are_not_measured() -> None:
    cluster = SmallCluster([100.0, 100.0, 50.0], fixed_s=0.0)
    seen = cluster.view()
    first = seen.records[0]
    assert first is not None
    for absurd in (1e308, 5e-324, math.inf, math.nan, -1.0):
        records = (dataclasses.replace(first, compute_s=absurd), *seen.records[1:])
        assert PidPolicy(3, keep_global=True).decide(dataclasses.replace(seen, records=records)).batch_sizes[0] == 64


def test_the_published_behaviour_in_the_simulator() -> None:
    figures = pid_published.measure(seeds=2)
    assert figures["passed"]
    assert 0 < figures["settling"]["adjustments"] <= 3
    three, five, twelve = figures["settling"]["sizes"]
    assert three < five < twelve
    assert figures["levels"][10]["pid_keep_speedup"] > 2 > figures["levels"][2]["pid_keep_speedup"] > 1
