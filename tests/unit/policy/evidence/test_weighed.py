"""Policies with evidence, on small clusters: equal workers stay equal, different ones are found, slow plans go."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dynamix_ps.messages import Plan
from dynamix_ps.policy.base import Decision, Policy, View
from dynamix_ps.policy.evidence.weighed import FIRST_REST, WeighedPolicy
from dynamix_ps.policy.registry import make_policy
from tests.control_plane import config
from tests.policy_cluster import WINDOW, SmallCluster

MEASURING = ("ppo", "goodput", "proportional", "pid", "lbbsp", "lbb")


def policy_of(name: str, workers: int, **chosen: Any) -> Policy:
    return make_policy(config(workers=workers, policy=name, learn=False, **chosen), workers, np.random.default_rng(0))


@pytest.mark.parametrize("name", MEASURING)
@pytest.mark.parametrize("seed", range(3))
def test_equal_workers_with_short_windows_keep_equal_shares(name: str, seed: int) -> None:
    """Windows of 0.1 s, in which times scatter by a sixth."""

    def most_uneven(policy: Policy) -> float:
        cluster, found = SmallCluster([40_000] * 3, fixed_s=1e-3, network_s=2e-3, jitter=0.17, seed=seed), [0.0]
        for _ in range(400):
            cluster.step(policy)
            sizes = cluster.plan.batch_sizes
            found += [abs(3 * size / sum(sizes) - 1) for size in sizes]
        return max(found)

    policy, alone = policy_of(name, 3), policy_of(name, 3)
    assert isinstance(alone, WeighedPolicy)
    assert most_uneven(policy) < 0.1
    if name in ("ppo", "goodput"):
        assert most_uneven(alone.inner) > 0.3, "this is what needs evidence"


@pytest.mark.parametrize("name", MEASURING)
def test_speeds_four_times_apart_are_found_within_three_windows_of_a_second(name: str) -> None:
    cluster = SmallCluster([40_000, 20_000, 10_000], fixed_s=0.0, network_s=0.001, jitter=0.1, noise_scale=200)
    policy, elapsed_s = policy_of(name, 3), 0.0
    while elapsed_s < 3.0:
        elapsed_s += WINDOW * cluster.step_s(cluster.plan.batch_sizes)
        cluster.step(policy)
    fast, middle, slow = cluster.plan.batch_sizes
    assert fast > 1.4 * middle > 1.4 * 1.4 * slow


def test_an_obvious_difference_needs_no_second() -> None:
    cluster = SmallCluster([4_000, 2_000, 1_000], fixed_s=0.0, network_s=0.001, start=12, low=2)
    policy = policy_of("ppo", 3)
    plans = [cluster.step(policy).batch_sizes for _ in range(3)]
    assert WINDOW * cluster.step_s((12, 12, 12)) < 0.3
    assert plans[0] == (12, 12, 12), "one window may err"
    assert plans[1][0] > plans[1][1] > plans[1][2]


class Proposals:
    """A policy that asks for these sizes in turn, and then for the last ones."""

    name = "proposals"

    def __init__(self, *sizes: tuple[int, ...]) -> None:
        self._sizes = list(sizes)

    def decide(self, view: View) -> Decision:
        return Decision(self._sizes.pop(0) if len(self._sizes) > 1 else self._sizes[0])


def test_a_plan_that_makes_training_slower_is_taken_back_and_not_asked_for_at_once() -> None:
    cluster = SmallCluster([1000, 1000], fixed_s=0.0, network_s=0.0)
    policy = WeighedPolicy(Proposals((64, 64), (100, 28)), 2)
    decisions = [cluster.step(policy) for _ in range(5 + FIRST_REST)]
    sizes = [decision.batch_sizes for decision in decisions]
    assert sizes[1] == (100, 28) and sizes[2] == (64, 64)
    assert decisions[2].note.startswith("sizes 64/64 come back: 2,000 samples/s, 1,280 since then")
    assert sizes[2 : 3 + FIRST_REST] == [(64, 64)] * (1 + FIRST_REST)


def test_a_network_that_becomes_slow_is_not_the_plans_fault_for_long() -> None:
    """The sizes that come back are no faster, so proposals do not rest."""
    cluster = SmallCluster([1000, 1000], fixed_s=0.0, network_s=0.0)
    policy = WeighedPolicy(Proposals((64, 64), (100, 28)), 2)
    answers = [cluster.step(policy).batch_sizes for _ in range(2)]
    cluster.network_s = 1.0
    answers += [cluster.step(policy).batch_sizes for _ in range(4)]
    assert answers == [(64, 64), (100, 28), (100, 28), (100, 28), (64, 64), (100, 28)]


def test_one_who_explores_needs_no_evidence() -> None:
    cluster = SmallCluster([1000, 1000], fixed_s=0.0)
    assert cluster.step(WeighedPolicy(Proposals((66, 62)), 2, explores=True)).batch_sizes == (66, 62)
    cluster = SmallCluster([1000, 1000], fixed_s=0.0)
    assert cluster.step(WeighedPolicy(Proposals((66, 62)), 2)).batch_sizes == (64, 64)


def test_a_batch_below_the_first_one_is_not_tried_where_it_would_be_slower() -> None:
    """A tiny noise scale makes small batches look good, and a fixed part makes them slow."""
    cluster = SmallCluster([10_000] * 2, fixed_s=0.05, network_s=0.0, noise_scale=1.0, low=4, lr_rule="none")
    policy = policy_of("ppo", 2)
    first = cluster.plan.global_batch
    for _ in range(40):
        cluster.step(policy)
        assert cluster.plan.global_batch >= 0.95 * first


def test_windows_of_the_paper_are_those_of_the_cluster_file() -> None:
    for chosen, weighed in (({"space": "paper"}, False), ({}, True)):
        assert isinstance(policy_of("ppo", 2, **chosen), WeighedPolicy) == weighed
    assert not isinstance(policy_of("random", 2), WeighedPolicy)
    assert not isinstance(policy_of("static", 2), WeighedPolicy)


def test_workers_that_come_and_go_need_no_evidence() -> None:
    policy = WeighedPolicy(Proposals((64, 64), (64, 0)), 2)
    cluster = SmallCluster([1000, 1000], fixed_s=0.0)
    cluster.step(policy)
    assert cluster.step(policy).batch_sizes == (64, 0)


def test_a_window_that_is_not_clean_counts_for_nothing() -> None:
    cluster, policy = SmallCluster([1000, 1000], fixed_s=0.0), WeighedPolicy(Proposals((100, 28)), 2)
    old = cluster.view()
    stale = View(old.window, Plan(7, old.plan.batch_sizes), old.bounds, old.records)
    assert not stale.clean
    policy.decide(stale)
    assert policy._joining.duration_s == 0.0
    assert math.isfinite(cluster.step(policy).batch_sizes[0])
