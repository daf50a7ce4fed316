"""All actors of a cluster together: they balance it, follow changes, and settle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from dynamix_ps.config.schema import Config, PolicySection, Stigmergy
from dynamix_ps.errors import PolicyError
from dynamix_ps.policy.base import View
from dynamix_ps.policy.registry import make_policy
from dynamix_ps.policy.stigmergy.policy import StigmergyPolicy
from dynamix_ps.sim.contest.evaluate import Cell, config_of, evaluate
from dynamix_ps.sim.scenario.load import load_scenario
from tests.policy_cluster import SmallCluster, any_views, assert_valid
from tests.unit.policy.baselines.test_goodput import best_goodput

NAME = "dynamix_ps.policy.stigmergy.policy:StigmergyPolicy"


def policy_for(n_workers: int, seed: int = 0, **options: float) -> StigmergyPolicy:
    return StigmergyPolicy(n_workers, np.random.default_rng(seed), **options)


@pytest.mark.parametrize(("network_s", "noise_scale"), [(0.05, 500), (0.3, 2000), (0.2, 5000)])
def test_it_comes_near_the_best_goodput(network_s: float, noise_scale: float) -> None:
    cluster = SmallCluster([4000, 2000, 1000], network_s=network_s, noise_scale=noise_scale, jitter=0.02)
    policy = policy_for(3)
    cluster.run(policy, 40)
    assert cluster.goodput(cluster.plan.batch_sizes) > 0.93 * best_goodput(cluster)


def test_a_worker_that_slows_down_is_relieved_within_a_few_windows() -> None:
    cluster = SmallCluster([4000, 2000, 1000], noise_scale=2000)
    policy = policy_for(3)
    cluster.run(policy, 30)
    cluster.speeds[0] /= 4
    cluster.run(policy, 4)
    assert cluster.goodput(cluster.plan.batch_sizes) > 0.9 * best_goodput(cluster)


@pytest.mark.parametrize("workers", [2, 8, 32])
def test_sizes_settle_while_speeds_are_constant(workers: int) -> None:
    speeds = np.geomspace(500, 4000, workers).tolist()
    cluster = SmallCluster(speeds, noise_scale=200 * workers, jitter=0.02, low=1)
    policy = policy_for(workers)
    for window in range(60):
        before = np.array(cluster.plan.batch_sizes)
        change = np.abs(np.array(cluster.step(policy).batch_sizes) - before)
        if window >= 10:
            assert (change <= np.maximum(0.03 * before, 1)).all()
    times_s = cluster.compute_s(cluster.plan.batch_sizes)
    assert times_s.max() < 1.1 * times_s.mean()


def test_fewer_workers_move_at_once_when_moves_are_damped() -> None:
    """Crowding makes the first step shorter, and all come to the same end."""
    steps, ends = [], []
    for crowding in (0.0, 3.0):
        cluster = SmallCluster([4000, 1000], jitter=0.0)
        policy = policy_for(2, crowding=crowding)
        steps.append(cluster.step(policy).batch_sizes[0])
        cluster.run(policy, 60)
        ends.append(cluster.plan.batch_sizes[0])
    assert 64 < steps[1] < steps[0]
    assert ends[0] == pytest.approx(ends[1], rel=0.05)


def test_without_a_noise_scale_the_global_batch_stays() -> None:
    cluster = SmallCluster([4000, 1000])
    policy = policy_for(2)
    cluster.run(policy, 20)
    assert cluster.plan.global_batch == pytest.approx(128, abs=4)
    assert cluster.plan.batch_sizes[0] > 2 * cluster.plan.batch_sizes[1]


def test_a_window_that_is_not_clean_changes_nothing() -> None:
    cluster = SmallCluster([4000, 1000])
    policy = policy_for(2)
    view = cluster.view()
    stale = View(view.window, view.plan.__class__(9, view.plan.batch_sizes), view.bounds, view.records)
    assert policy.decide(stale).batch_sizes == view.plan.batch_sizes
    assert policy.decide(view).batch_sizes != view.plan.batch_sizes


def test_the_same_seed_gives_the_same_sizes() -> None:
    plans = []
    for seed in (0, 0, 1):
        cluster = SmallCluster([4000, 1900, 1000], jitter=0.02, noise_scale=500)
        policy = policy_for(3, seed)
        plans.append([cluster.step(policy).batch_sizes for _ in range(20)])
    assert plans[0] == plans[1] != plans[2]


@settings(max_examples=50, deadline=None)
@given(any_views())
def test_any_records_give_sizes_within_their_bounds(views: list[View]) -> None:
    policy = policy_for(len(views[0].bounds))
    for view in views:
        assert_valid(policy.decide(view), view)


def test_a_cluster_file_may_name_it_with_its_settings() -> None:
    def made(**options: float) -> object:
        config = Config.model_validate(
            {"cluster": {"workers": ({}, {})}, "policy": {"name": NAME, "options": options}, "comm": "gloo"}
        )
        return make_policy(config, 2, np.random.default_rng(0))

    assert isinstance(made(crowding=0.25), StigmergyPolicy)
    with pytest.raises(PolicyError, match="calming is 0"):
        made(calming=0)


def test_what_the_section_of_a_cluster_file_says_counts() -> None:
    """As the same numbers given by hand do: in how many windows the first sizes change by much."""

    def sizes(policy: StigmergyPolicy) -> list[tuple[int, ...]]:
        cluster = SmallCluster([4000, 1900, 1000], jitter=0.02, noise_scale=500)
        return [cluster.step(policy).batch_sizes for _ in range(10)]

    numbers = {"evaporation": 0.25, "alarm": 0.3, "calming": 0.7, "crowding": 3.0}
    for changed in ({}, *({name: value} for name, value in numbers.items())):
        section = PolicySection(name="stigmergy", stigmergy=Stigmergy(**changed))
        made = make_policy(config_of(load_scenario("h-level-2"), section), 3, np.random.default_rng(0))
        assert isinstance(made, StigmergyPolicy)
        found = sizes(made)
        assert found == sizes(policy_for(3, **changed))
        assert (found == sizes(policy_for(3))) is not bool(changed)


@pytest.mark.slow
def test_it_is_as_fast_as_the_central_policies_on_an_uneven_cluster() -> None:
    scenario = load_scenario("h-level-8").with_workers(4)
    times_s = {
        name: evaluate(Cell(scenario, PolicySection(name=name), seeds=2)).time_s.mean()
        for name in (NAME, "goodput", "pid")
    }
    assert times_s[NAME] < 1.05 * times_s["goodput"]
    assert times_s[NAME] < 0.8 * times_s["pid"]
