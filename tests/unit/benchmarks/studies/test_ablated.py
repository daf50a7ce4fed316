"""A policy with one of its decisions switched off."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from benchmarks.studies.ablated import AblatedPolicy
from dynamix_ps.config import schema
from dynamix_ps.errors import PolicyError
from dynamix_ps.policy.base import Decision, Policy, View
from dynamix_ps.policy.registry import make_policy
from tests.control_plane import config
from tests.policy_cluster import SmallCluster, any_views, assert_valid

SPEEDS = [4000.0, 2000.0, 1000.0]


class Asks(Policy):
    """Wants a larger and uneven batch."""

    name = "asks"

    def decide(self, view: View) -> Decision:
        return Decision((120, 60, 60))


def ablated(without: str, policy: str = f"{__name__}:Asks", workers: int = 3) -> AblatedPolicy:
    name = "benchmarks.studies.ablated:AblatedPolicy"
    options: dict[str, Any] = {"policy": {"name": policy}, "without": without}
    chosen = config(workers).model_copy(update={"policy": schema.PolicySection(name=name, options=options)})
    made = make_policy(chosen, workers, np.random.default_rng(0))
    assert isinstance(made, AblatedPolicy)
    return made


@pytest.mark.parametrize(("without", "sizes"), [("batch", (96, 48, 48)), ("shares", (80, 80, 80))])
def test_one_part_of_the_answer_is_taken_back(without: str, sizes: tuple[int, ...]) -> None:
    assert ablated(without).decide(SmallCluster(SPEEDS).view()).batch_sizes == sizes
    assert ablated(without).name == f"asks without {without}"


def test_a_policy_that_keeps_its_sizes_keeps_them_without_a_part() -> None:
    view = dataclasses.replace(SmallCluster(SPEEDS).view(), reference_batch=999)
    assert ablated("batch", "static").decide(view).batch_sizes == view.plan.batch_sizes


def test_a_part_that_there_is_not_is_refused() -> None:
    with pytest.raises(PolicyError, match="without: got 'momentum', expected one of batch, shares"):
        ablated("momentum")


@settings(max_examples=40)
@given(any_views())
def test_its_answers_are_within_the_bounds(views: list[View]) -> None:
    workers = len(views[0].bounds)
    policies = [ablated("batch", "goodput", workers), ablated("shares", "goodput", workers)]
    for view in views:
        for policy in policies:
            assert_valid(policy.decide(view), view)
