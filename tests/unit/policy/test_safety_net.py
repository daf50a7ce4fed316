from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.config.schema import Safety
from dynamix_ps.messages import Plan
from dynamix_ps.policy.base import Decision, Learner, View
from dynamix_ps.policy.baselines.goodput import GoodputPolicy
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.safety_net import SafetyNet
from dynamix_ps.policy.window_arrays import arrays_of
from tests.policy_cluster import SmallCluster, any_views, assert_valid

SAFETY = Safety(worse_windows=3, margin=0.1, rest_windows=4)


class Stubborn:
    """Always asks for the same sizes."""

    name = "ppo"

    def __init__(self, sizes: Any, n_workers: int = 2) -> None:
        self.sizes = sizes
        self.seen = 0
        self.model = ClusterModel(n_workers)

    def decide(self, view: View) -> Decision:
        self.seen += 1
        if view.clean:
            self.model.observe(arrays_of(view))
        return Decision(self.sizes, reward=0.5)


def run(net: SafetyNet, cluster: SmallCluster, windows: int) -> list[Decision]:
    return [cluster.step(net) for _ in range(windows)]


def net_over(policy: Any, safety: Safety = SAFETY) -> SafetyNet:
    return SafetyNet(policy, safety)


def test_a_bad_policy_is_replaced_for_a_while_and_judged_anew() -> None:
    cluster = SmallCluster([4000, 1000], fixed_s=0.0, network_s=0.01, noise_scale=200, start=128)
    decisions = run(net_over(policy := Stubborn((32, 600))), cluster, 16)
    # one window to ask, three that are judged, four of rest
    assert [d.fallback for d in decisions] == ([False] * 3 + [True] * 4) * 2 + [False] * 2
    assert [bool(d.note) for d in decisions] == ([False] * 3 + [True] + [False] * 3) * 2 + [False] * 2
    assert "below theirs for 3 windows" in decisions[3].note
    resting = decisions[3].batch_sizes
    assert sum(resting) == 256
    assert 3 < resting[0] / resting[1] < 5.5  # as far as a slow first window and one other size can tell
    assert decisions[6].batch_sizes[0] == pytest.approx(4 * decisions[6].batch_sizes[1], rel=0.05)
    assert decisions[7].batch_sizes == (32, 600)
    assert policy.seen == 16  # it sees every window, also at rest
    assert all(d.reward == 0.5 for d in decisions)


def test_a_good_policy_is_left_alone_also_through_noise_and_a_slow_worker() -> None:
    cluster = SmallCluster([4000, 1000], noise_scale=2000, start=128, jitter=0.03)
    decisions = run(net_over(GoodputPolicy(2)), cluster, 30)
    cluster.speeds[0] /= 5
    decisions += run(net_over(GoodputPolicy(2)), cluster, 30)
    assert not any(d.fallback for d in decisions)


def test_a_batch_that_is_too_large_for_its_noise_is_found_out_even_if_it_is_fast() -> None:
    cluster = SmallCluster([1000, 1000], fixed_s=0.001, network_s=0.001, noise_scale=50, start=64)
    assert any(d.fallback for d in run(net_over(Stubborn((1024, 1024))), cluster, 6))
    cluster = SmallCluster([1000, 1000], fixed_s=0.001, network_s=3.0, noise_scale=5000, start=64)
    assert not any(d.fallback for d in run(net_over(Stubborn((1024, 1024))), cluster, 6))


def test_where_training_ends_with_larger_batches_they_are_not_held_against_the_policy() -> None:
    slow = {"fixed_s": 0.001, "network_s": 0.001, "noise_scale": 50, "start": 64, "lr_rule": "sqrt"}
    for trained_ratio, replaced in ((0.5, True), (0.9, False)):
        cluster = SmallCluster([1000, 1000], **slow, trained_ratio=trained_ratio)
        assert any(d.fallback for d in run(net_over(Stubborn((128, 128))), cluster, 8)) == replaced
    cluster = SmallCluster([1000, 1000], **slow, trained_ratio=0.9)
    assert any(d.fallback for d in run(net_over(Stubborn((220, 36))), cluster, 8)), "a bad split is"


def test_without_a_noise_scale_only_the_split_is_judged() -> None:
    cluster = SmallCluster([1000, 1000], start=64)
    assert not any(d.fallback for d in run(net_over(Stubborn((900, 900))), cluster, 8))
    cluster = SmallCluster([1000, 1000], start=64)
    assert any(d.fallback for d in run(net_over(Stubborn((1000, 100))), cluster, 8))


def test_a_plan_is_judged_also_after_a_window_that_is_not_clean() -> None:
    """As where a plan takes longer than a window to come into force."""
    cluster = SmallCluster([1000, 1000], fixed_s=0.0, network_s=0.01, start=64)
    policy = Stubborn((500, 100))
    net, noticed = net_over(policy), False
    for sizes in ((500, 100), (501, 99)) * 4:
        policy.sizes = sizes
        noticed |= cluster.step(net).fallback
        paused = cluster.view()
        first = paused.records[0]
        assert first is not None
        net.decide(dataclasses.replace(paused, records=(dataclasses.replace(first, flagged=True), paused.records[1])))
    assert noticed


def test_one_good_window_starts_the_count_again() -> None:
    cluster = SmallCluster([1000, 1000], fixed_s=0.0, network_s=0.01, start=64)
    policy = Stubborn((500, 100))
    net = net_over(policy)
    for sizes in ((500, 100), (500, 100), (300, 300)) * 3:
        policy.sizes = sizes
        assert not cluster.step(net).fallback


def test_windows_under_somebody_elses_plan_are_not_judged() -> None:
    cluster = SmallCluster([1000, 1000], fixed_s=0.0, network_s=0.01, start=64)
    net = net_over(Stubborn((64, 64)))
    for version in range(1, 9):
        cluster.plan = Plan(version, (1000, 32))  # observe mode, say: what it asks for never comes into force
        assert not net.decide(cluster.view()).fallback


@pytest.mark.parametrize("answer", [(64,), (), (math.nan, 64), (64, math.inf)])
def test_an_answer_that_is_no_sizes_brings_proportional_shares_at_once(answer: Any) -> None:
    cluster = SmallCluster([1000, 500], fixed_s=0.0, start=64)
    decision = net_over(Stubborn(answer)).decide(cluster.view())
    assert decision.fallback
    assert "its answer was not one finite size per worker" in decision.note
    assert sum(decision.batch_sizes) == 128
    assert decision.batch_sizes[0] > decision.batch_sizes[1]


def test_bounds_and_memory_hold_sizes_back() -> None:
    cluster = SmallCluster([1000, 1000, 1000], start=64)
    seen = cluster.view()
    records = tuple(
        dataclasses.replace(record, memory_ratio=ratio)
        for record, ratio in zip(seen.reported, (0.96, 0.5, math.nan), strict=True)
    )
    seen = dataclasses.replace(seen, records=records)
    assert net_over(Stubborn((2000, 2000, 1), 3)).decide(seen).batch_sizes == (64, 1024, 32)
    assert net_over(Stubborn((40, 40, 40), 3)).decide(seen).batch_sizes == (40, 40, 40)


def test_a_pause_neither_judges_nor_ends_the_rest() -> None:
    cluster = SmallCluster([4000, 1000], fixed_s=0.0, network_s=0.01, start=128)
    net = net_over(Stubborn((32, 600)))
    run(net, cluster, 5)  # in the second window of rest
    seen = cluster.view()
    paused = dataclasses.replace(seen, records=tuple(dataclasses.replace(r, flagged=True) for r in seen.reported))
    for _ in range(10):
        decision = net.decide(paused)
        assert decision.fallback
        assert decision.batch_sizes == seen.plan.batch_sizes
    assert [d.fallback for d in run(net, cluster, 3)] == [True, True, False]


def test_it_learns_exactly_if_the_policy_inside_does(tmp_path: Path) -> None:
    class Student(Stubborn):
        update_due = True

        def begin_update(self) -> Callable[[], int]:
            return lambda: 7

        def finish_update(self, finished: int) -> Mapping[str, Any]:
            return {"accepted": 1.0, "finished": finished}

        def save(self, file: Path) -> None:
            file.write_text("weights")

    net = net_over(Student((64, 64)))
    assert isinstance(net, Learner)
    assert net.update_due
    assert net.finish_update(net.begin_update()()) == {"accepted": 1.0, "finished": 7}
    net.save(tmp_path / "policy.npz")
    assert (tmp_path / "policy.npz").read_text() == "weights"
    assert not net_over(Stubborn((64, 64))).update_due


@pytest.mark.slow
@given(any_views(windows=8), st.data())
def test_any_windows_and_any_answers_give_valid_sizes(views: list[View], data: st.DataObject) -> None:
    workers = len(views[0].bounds)
    sizes = st.one_of(st.integers(-(2**60), 2**60), st.floats(), st.integers(0, 1000))
    policy = Stubborn((), workers)
    net = SafetyNet(policy, Safety(worse_windows=1, margin=0.0, rest_windows=2))
    for view in views:
        policy.sizes = tuple(data.draw(st.lists(sizes, min_size=workers, max_size=workers)))
        assert_valid(net.decide(view), view)
