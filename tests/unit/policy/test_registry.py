from __future__ import annotations

import numpy as np
import pytest

from dynamix_ps.config.policies import POLICIES
from dynamix_ps.config.schema import LbBsp, Pid, PolicySection, Ppo, Safety
from dynamix_ps.messages import Plan
from dynamix_ps.policy.base import Policy
from dynamix_ps.policy.baselines.lbbsp import LbBspCpuPolicy, LbBspGpuPolicy
from dynamix_ps.policy.evidence.weighed import WeighedPolicy
from dynamix_ps.policy.learned.policy import PpoPolicy
from dynamix_ps.policy.registry import make_policy
from dynamix_ps.policy.safety_net import SafetyNet
from tests.control_plane import config, run_under, view
from tests.policy_cluster import SmallCluster, assert_valid


def made(policy: PolicySection, workers: int = 3) -> Policy:
    return make_policy(config(workers).model_copy(update={"policy": policy}), workers, np.random.default_rng(0))


def inside(policy: PolicySection) -> Policy:
    """The policy whose proposals need evidence."""
    weighed = made(policy)
    assert isinstance(weighed, WeighedPolicy)
    return weighed.inner


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_of_the_configuration_can_be_made(name: str) -> None:
    policy = make_policy(config(policy=name, file="fresh", learn=True), 3, np.random.default_rng(0))
    assert policy.name == name
    plan = Plan(0, (64, 64, 64))
    for window in range(2):
        closed = view(plan, run_under(plan, window))
        assert_valid(policy.decide(closed), closed)


@pytest.mark.parametrize(("keep_global", "sizes"), [(False, (128, 43)), (True, (96, 32))])
def test_pid_is_told_whether_the_global_batch_stays(keep_global: bool, sizes: tuple[int, ...]) -> None:
    cluster = SmallCluster([64.0, 64 / 3], fixed_s=0.0, start=64)
    policy = made(PolicySection(name="pid", pid=Pid(keep_global=keep_global)), 2)
    assert policy.decide(cluster.view()).batch_sizes == sizes


def test_the_learned_policy_that_ships_ends_training_with_larger_batches() -> None:
    cluster = SmallCluster([4000, 2000, 2000], noise_scale=150, network_s=0.02, low=8, lr_rule="sqrt")
    policy, decisions = made(PolicySection(name="ppo")), []
    for window in range(40):
        cluster.trained_ratio = window / 40
        decisions.append(cluster.step(policy))
    batches = [sum(decision.batch_sizes) for decision in decisions]
    assert np.median(batches[33:]) == pytest.approx(2 * np.median(batches[20:30]), rel=0.1)
    assert not any(decision.fallback for decision in decisions)


def test_lbbsp_has_a_rule_for_each_kind_of_cluster() -> None:
    assert isinstance(inside(PolicySection(name="lbbsp")), LbBspCpuPolicy)
    assert isinstance(inside(PolicySection(name="lbbsp", lbbsp=LbBsp(rule="gpu"))), LbBspGpuPolicy)


def test_a_learned_policy_has_a_safety_net_unless_that_is_turned_off() -> None:
    fresh = Ppo(file="fresh", learn=True)
    assert isinstance(inside(PolicySection(name="ppo", ppo=fresh)), SafetyNet)
    assert isinstance(inside(PolicySection(name="ppo", ppo=fresh, safety=Safety(enabled=False))), PpoPolicy)
