from __future__ import annotations

import math

import numpy as np
import pytest

from dynamix_ps.policy.baselines.goodput import GoodputPolicy
from dynamix_ps.policy.model.efficiency import goodput
from dynamix_ps.policy.window_arrays import arrays_of
from tests.policy_cluster import SmallCluster


def best_goodput(cluster: SmallCluster) -> float:
    """By trying: every B from B0 on, split so that all finish together."""
    found = 0.0
    for together_s in np.geomspace(1e-3, 10, 4000):
        sizes = np.clip((together_s - cluster.fixed_s) * np.array(cluster.speeds), cluster.low, cluster.high)
        if sizes.sum() >= cluster.start * len(sizes):
            found = max(found, cluster.goodput(sizes.tolist()))
    return found


@pytest.mark.parametrize(
    ("network_s", "overlap", "noise_scale"), [(0.05, 1.0, 500), (0.3, 3.0, 2000), (0.001, 1.0, 50), (0.2, 10.0, 5000)]
)
def test_it_comes_near_the_best_goodput_within_a_few_windows(
    network_s: float, overlap: float, noise_scale: float
) -> None:
    cluster = SmallCluster(
        [4000, 2000, 1000], network_s=network_s, overlap=overlap, noise_scale=noise_scale, jitter=0.02
    )
    policy = GoodputPolicy(3)
    cluster.run(policy, 6)
    assert cluster.goodput(cluster.plan.batch_sizes) > 0.93 * best_goodput(cluster)


def test_a_worker_that_slows_down_is_relieved_in_the_next_window() -> None:
    cluster = SmallCluster([4000, 2000, 1000], noise_scale=2000)
    policy = GoodputPolicy(3)
    cluster.run(policy, 8)
    cluster.speeds[0] /= 4
    cluster.fixed_s = 0.02  # of all; the speed alone falls
    cluster.run(policy, 3)
    assert cluster.goodput(cluster.plan.batch_sizes) > 0.93 * best_goodput(cluster)


def test_sizes_stay_where_a_change_promises_little() -> None:
    cluster = SmallCluster([1000, 1000], noise_scale=300.0)
    policy = GoodputPolicy(2)
    cluster.run(policy, 5)
    plan = cluster.plan
    for factor in (1.02, 0.98, 1.03):
        cluster.speeds = [1000 * factor, 1000]
        cluster.step(policy)
    assert cluster.plan == plan


def test_without_a_noise_scale_the_global_batch_stays() -> None:
    cluster = SmallCluster([4000, 1000])
    policy = GoodputPolicy(2)
    cluster.run(policy, 4)
    assert cluster.plan.global_batch == 128
    assert cluster.plan.batch_sizes[0] > cluster.plan.batch_sizes[1]


def test_the_batch_grows_with_the_noise_and_never_below_the_first() -> None:
    totals = []
    for noise_scale in (1.0, 300.0, 3000.0, 1e9):
        cluster = SmallCluster([2000, 2000, 1000, 1000], noise_scale=noise_scale)
        policy = GoodputPolicy(4)
        cluster.run(policy, 5)
        totals.append(cluster.plan.global_batch)
    assert totals == sorted(totals)
    assert totals[0] == 256
    assert totals[-1] > 3 * 1024  # all there is, within a candidate


def test_under_adascale_it_is_throughput_times_pollux_efficiency() -> None:
    variance_per_sample, signal, initial = 500.0, 2.0, 100
    variance = variance_per_sample / initial  # of the mean of B0 samples, as AdaptDL counts it
    seen = arrays_of(SmallCluster([1000.0], start=initial).view())
    noise_scale = variance_per_sample / signal

    def published(batch: int, iteration_s: float) -> float:
        scale = batch / initial
        gain = (variance + signal) / (variance / scale + signal)
        return batch / iteration_s * gain / scale

    ours = goodput(seen, np.array([100, 400, 3000]), np.array([0.1, 0.3, 2.0]), noise_scale)
    theirs = np.array([published(100, 0.1), published(400, 0.3), published(3000, 2.0)])
    assert ours / ours[0] == pytest.approx(theirs / theirs[0])
    noisy = goodput(seen, np.array([100, 400]), np.array([1.0, 1.0]), math.inf)
    assert noisy[1] / noisy[0] == pytest.approx(4.0)


def test_a_learning_rate_that_would_diverge_is_not_asked_for() -> None:
    """Linear scaling far beyond the noise scale diverges; AdaScale does not."""
    totals = {}
    for rule in ("adascale", "linear", "none"):
        cluster = SmallCluster([1000, 1000], network_s=5.0, noise_scale=100, lr_rule=rule)
        policy = GoodputPolicy(2)
        cluster.run(policy, 6)
        totals[rule] = cluster.plan.global_batch
    assert totals["adascale"] > 900
    assert totals["linear"] < 500
    assert totals["none"] > 128
