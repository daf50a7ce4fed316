from __future__ import annotations

import dataclasses

import numpy as np

from dynamix_ps.policy.baselines.random_sizes import RandomSizesPolicy
from tests.policy_cluster import SmallCluster


def drawn(windows: int, seed: int = 0) -> np.ndarray:
    cluster = SmallCluster([100.0, 100.0], low=16, high=1024)
    policy = RandomSizesPolicy(np.random.default_rng(seed))
    return np.array([cluster.step(policy).batch_sizes for _ in range(windows)])


def test_every_octave_between_the_bounds_is_as_likely() -> None:
    octaves = np.histogram(np.log2(drawn(1500)), bins=np.arange(4, 11))[0]
    assert (np.abs(octaves / octaves.sum() - 1 / 6) < 0.03).all()


def test_workers_and_windows_differ_and_the_seed_alone_decides() -> None:
    sizes = drawn(20)
    assert len({tuple(row) for row in sizes}) == 20
    assert (sizes[:, 0] != sizes[:, 1]).any()
    assert (drawn(20) == sizes).all()
    assert (drawn(20, seed=1) != sizes).any()


def test_windows_that_are_not_clean_keep_the_plan_and_draw_nothing() -> None:
    cluster = SmallCluster([100.0, 100.0])
    seen = cluster.view()
    policy, undisturbed = (RandomSizesPolicy(np.random.default_rng(0)) for _ in range(2))
    assert policy.decide(dataclasses.replace(seen, records=(None, None))).batch_sizes == (64, 64)
    assert policy.decide(seen) == undisturbed.decide(seen)
