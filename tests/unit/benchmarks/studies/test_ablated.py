"""A policy with one of its decisions switched off, and the policy whose batch grows as the rate would fall."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from benchmarks.studies.ablated import AblatedPolicy
from benchmarks.studies.seesaw import SeesawPolicy
from dynamix_ps.config import schema
from dynamix_ps.errors import PolicyError
from dynamix_ps.policy.base import Decision, Policy, View
from dynamix_ps.policy.baselines.goodput import GoodputPolicy
from dynamix_ps.policy.registry import make_policy
from tests.control_plane import config
from tests.policy_cluster import SmallCluster, any_views, assert_valid

SPEEDS = [4000.0, 2000.0, 1000.0]


class Asks(Policy):
    """Wants a larger and uneven batch, and a lower rate."""

    name = "asks"

    def decide(self, view: View) -> Decision:
        return Decision((120, 60, 60), lr_step=0.5)


def ablated(without: str, policy: str = f"{__name__}:Asks", workers: int = 3) -> AblatedPolicy:
    name = "benchmarks.studies.ablated:AblatedPolicy"
    options: dict[str, Any] = {"policy": {"name": policy}, "without": without}
    chosen = config(workers).model_copy(update={"policy": schema.PolicySection(name=name, options=options)})
    made = make_policy(chosen, workers, np.random.default_rng(0))
    assert isinstance(made, AblatedPolicy)
    return made


@pytest.mark.parametrize(
    ("without", "sizes", "lr_step"),
    [("batch", (96, 48, 48), 0.5), ("shares", (80, 80, 80), 0.5), ("rate", (120, 60, 60), None)],
)
def test_one_part_of_the_answer_is_taken_back(without: str, sizes: tuple[int, ...], lr_step: float | None) -> None:
    decision = ablated(without).decide(SmallCluster(SPEEDS).view())
    assert (decision.batch_sizes, decision.lr_step) == (sizes, lr_step)
    assert ablated(without).name == f"asks without {without}"


def test_a_policy_that_keeps_its_sizes_keeps_them_without_a_part() -> None:
    view = dataclasses.replace(SmallCluster(SPEEDS).view(), reference_batch=999)
    assert ablated("batch", "static").decide(view).batch_sizes == view.plan.batch_sizes


def test_a_part_that_there_is_not_is_refused() -> None:
    with pytest.raises(PolicyError, match="without: got 'momentum', expected one of batch, shares, rate"):
        ablated("momentum")


@settings(max_examples=40)
@given(any_views())
def test_its_answers_are_within_the_bounds(views: list[View]) -> None:
    workers = len(views[0].bounds)
    policies = [ablated("batch", "goodput", workers), ablated("shares", "goodput", workers), SeesawPolicy(workers)]
    for view in views:
        for policy in policies:
            assert_valid(policy.decide(view), view)


def test_the_batch_of_seesaw_grows_as_the_rate_falls_and_is_split_by_speed() -> None:
    cluster = SmallCluster(SPEEDS)
    policy = SeesawPolicy(3)
    for factor in (1.0, 0.5, 0.25):
        cluster.plan = dataclasses.replace(cluster.plan, lr_factor=factor)
        cluster.step(policy)
        assert sum(cluster.plan.batch_sizes) == 192 / factor
    times_s = cluster.compute_s(cluster.plan.batch_sizes)
    assert times_s.max() < 1.1 * times_s.min()


def test_seesaw_keeps_its_sizes_while_nothing_changes() -> None:
    cluster, policy = SmallCluster(SPEEDS, jitter=0.02), SeesawPolicy(3)
    plans = [cluster.step(policy).batch_sizes for _ in range(12)]
    assert len(set(plans[2:])) == 1


def test_the_ablated_policy_sees_what_the_whole_one_sees() -> None:
    whole, without = SmallCluster(SPEEDS, noise_scale=2000), SmallCluster(SPEEDS, noise_scale=2000)
    rate_off, policy = ablated("rate", "goodput"), GoodputPolicy(3)
    for _ in range(6):
        whole.step(policy)
        without.step(rate_off)
    assert whole.plan == without.plan
