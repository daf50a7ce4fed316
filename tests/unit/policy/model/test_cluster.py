"""The model of the cluster: compute times, the parts of an iteration, the noise of gradients."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dynamix_ps.config.schema import Config
from dynamix_ps.messages import Plan
from dynamix_ps.policy.base import View
from dynamix_ps.policy.evidence.weighed import WeighedPolicy
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.model.compute_times import FIXED_PART, ComputeMeter, ComputeTimes
from dynamix_ps.policy.model.efficiency import NoiseScale
from dynamix_ps.policy.model.network_times import _WINDOWS_KEPT as KEPT
from dynamix_ps.policy.model.network_times import StepTimes
from dynamix_ps.policy.registry import make_policy
from dynamix_ps.policy.window_arrays import arrays_of
from tests import control_plane
from tests.control_plane import record, view
from tests.policy_cluster import SmallCluster


def seen_at(cluster: SmallCluster, *plans: tuple[int, ...]) -> tuple[ClusterModel, StepTimes]:
    """Both after three windows of each plan."""
    model, times = ClusterModel(len(cluster.speeds)), StepTimes()
    for version, sizes in enumerate(plans):
        cluster.plan = Plan(version, sizes)
        for _ in range(3):
            model.observe(arrays_of(cluster.view()))
            times.observe(model)
    return model, times


def test_two_sizes_tell_the_fixed_part_and_the_network() -> None:
    cluster = SmallCluster([4000, 1000], network_s=0.2, overlap=2.0)
    model, times = seen_at(cluster, (64, 64), (256, 128), (512, 512))
    for sizes in ((128, 300), (1000, 32)):
        assert model.compute.now.seconds(sizes) == pytest.approx(cluster.compute_s(sizes), rel=0.01)
        longest_s = model.compute.now.seconds(sizes).max()
        assert times.iteration_s(longest_s) == pytest.approx(cluster.step_s(sizes), rel=0.05)


@pytest.mark.parametrize("windows", [100, 128, 129, 200])
def test_step_times_are_those_of_the_newest_windows_however_many_there_were(windows: int) -> None:
    cluster, model = SmallCluster([4000, 1000], jitter=0.1, overlap=2.0), ClusterModel(2)
    long, short = StepTimes(), StepTimes()
    for number in range(windows):
        cluster.plan = Plan(number, (64 + number % 50, 64))
        model.observe(arrays_of(cluster.view()))
        long.observe(model)
        if number >= windows - KEPT:
            short.observe(model)
    longest_s = np.array([0.1, 0.2])
    assert np.array_equal(long.iteration_s(longest_s), short.iteration_s(longest_s))


def test_a_worker_under_a_quota_needs_its_cpu_time_over_its_cores() -> None:
    held = record(1, batch_size=100, samples=2000, compute_s=1.0, duration_s=4.0, cpu_ratio=0.2, cpu_cores=0.25)
    for throttled, needed_s in ((0.1, 0.16), (0.0, 0.05)):
        model = ClusterModel(2)
        waited = dataclasses.replace(held, throttled=throttled)
        seen = view(Plan(0, (100, 100)), [record(0, batch_size=100, samples=2000, compute_s=3.9), waited])
        model.observe(arrays_of(seen))
        assert model.compute.now.seconds([100, 100])[1] == pytest.approx(needed_s)


def test_a_quota_is_not_forgotten_in_a_window_that_shows_none() -> None:
    held = record(1, batch_size=100, samples=2000, compute_s=1.0, duration_s=4.0, cpu_ratio=0.2, cpu_cores=0.25)
    model = ClusterModel(2)
    for throttled in (0.1, 0.0, math.nan):
        waited = dataclasses.replace(held, throttled=throttled)
        seen = view(Plan(0, (100, 100)), [record(0, batch_size=100, samples=2000, compute_s=3.9), waited])
        model.observe(arrays_of(seen))
        assert model.compute.now.seconds([100, 100])[1] == pytest.approx(0.16)


def test_one_size_tells_nothing_of_the_fixed_part() -> None:
    cluster = SmallCluster([1000.0], fixed_s=0.0)
    model, _ = seen_at(cluster, (100,))
    assert model.compute.now.seconds([100]) == pytest.approx(0.1)
    assert model.compute.now.seconds([300]) == pytest.approx(0.1 * (3 - 2 * FIXED_PART))


@given(
    st.lists(st.floats(100, 10_000), min_size=1, max_size=6),
    st.floats(0, 0.05),
    st.floats(0, 1),
)
def test_balanced_shares_add_up_and_take_the_time_they_promise(
    speeds: list[float], fixed_s: float, part: float
) -> None:
    cluster = SmallCluster(speeds, fixed_s=fixed_s)
    n = len(speeds)
    model, _ = seen_at(cluster, (64,) * n, (128,) * n)
    low, high = np.full(n, 32), np.full(n, 1024)
    total = round(32 * n + part * (1024 - 32) * n)
    balanced_s = float(model.balanced_s(total, model.compute.now))
    sizes = model.shares(total, model.compute.now)
    assert sizes.sum() == total
    assert ((low <= sizes) & (sizes <= high)).all()
    rounding_s = (1 / model.compute.now.rates_per_s).max()
    assert model.compute.now.seconds(sizes).max() <= balanced_s * (1 + 1e-6) + rounding_s


class BusyHost(SmallCluster):
    """Another job makes the first worker 2.5 times slower for a third of every 30 s."""

    at_s = 0.0

    def compute_s(self, sizes: Sequence[float]) -> NDArray[np.float64]:
        slower = np.ones(len(self.speeds))
        slower[0] = 2.5 if self.is_slow else 1.0
        return super().compute_s(sizes) * slower

    @property
    def is_slow(self) -> bool:
        return self.at_s % 30 < 10

    def view(self) -> View:
        seen = super().view()
        assert seen.reported
        self.at_s += seen.reported[0].duration_s
        return seen


@pytest.mark.parametrize("name", ["ppo", "goodput"])
def test_plans_fit_a_slow_down_that_comes_back_before_it_is_seen(name: str) -> None:
    """What the model foresees, whatever evidence its policy needs."""
    config: Config = control_plane.config(workers=4, policy=name, learn=False)
    weighed = make_policy(config, 4, np.random.default_rng(0))
    assert isinstance(weighed, WeighedPolicy)
    policy = weighed.inner
    cluster = BusyHost([1000] * 4, network_s=0.01, noise_scale=300, jitter=0.01)
    slow_before, fits = False, []
    for window in range(320):
        slow, planned = cluster.is_slow, cluster.plan.batch_sizes
        if window >= 220 and slow != slow_before:  # a quarter of the samples when fast, an eighth when slow
            fits.append((planned[0] / sum(planned) < 0.18) == slow)
        slow_before = slow
        cluster.step(policy)
    assert len(fits) > 10
    assert np.mean(fits) > 0.7


class Stairs(SmallCluster):
    """Computes 64 samples at once."""

    def compute_s(self, sizes: Sequence[float]) -> NDArray[np.float64]:
        return super().compute_s(64 * np.ceil(np.asarray(sizes) / 64))


@pytest.mark.parametrize("name", ["ppo", "goodput"])
def test_new_plans_fill_the_tiles_of_the_hardware(name: str) -> None:
    config: Config = control_plane.config(workers=3, policy=name, learn=False)
    policy, rng = make_policy(config, 3, np.random.default_rng(0)), np.random.default_rng(1)
    cluster = Stairs([1000, 2000, 1500], noise_scale=3000)
    for version in range(12):
        cluster.plan = Plan(version, tuple(rng.integers(40, 300, 3).tolist()))
        policy.decide(cluster.view())
    before, plans = cluster.plan, set()
    for _ in range(6):
        cluster.step(policy)
        plans.add(cluster.plan)
    new = plans - {before}
    assert new
    assert all(size % 64 == 0 for plan in new for size in plan.batch_sizes)


@pytest.mark.parametrize("name", ["ppo", "goodput", "lbb"])
def test_a_window_is_observed_once_by_everything_that_measures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also under a safety net, which judges with the model that its policy has."""
    calls: Counter[tuple[str, int]] = Counter()

    def counted(kind: type[Any]) -> None:
        observe = kind.observe

        def once_more(self: Any, *seen: Any) -> Any:
            calls[kind.__name__, id(self)] += 1
            return observe(self, *seen)

        monkeypatch.setattr(kind, "observe", once_more)

    parts = (ClusterModel, ComputeMeter, ComputeTimes, NoiseScale)
    for kind in parts:
        counted(kind)
    config: Config = control_plane.config(workers=2, policy=name, learn=False)
    policy = make_policy(config, 2, np.random.default_rng(0))
    cluster = SmallCluster([4000, 1000], noise_scale=100)
    cluster.run(policy, 6)
    assert {kind for kind, _ in calls} == {kind.__name__ for kind in parts} and set(calls.values()) == {6}


def test_a_signal_that_is_not_positive_is_an_infinite_noise_scale() -> None:
    for variance, signal, scale in (
        (4.0, 2.0, 2.0),
        (4.0, -1.0, math.inf),
        (-4.0, 1.0, 0.0),
        (math.nan, 1.0, math.nan),
    ):
        noise = NoiseScale()
        norms: dict[str, Any] = {"noise_variance": variance, "noise_signal": signal, "grad_sq_global": 1.0}
        noise.observe(arrays_of(view(Plan(0, (64,)), [record(0, **norms)])))
        assert noise.estimated == pytest.approx(scale, nan_ok=True)


def test_what_was_estimated_leaves_out_what_was_expected_before() -> None:
    noise = NoiseScale()
    for variance, signal in ((450.0, 25.0), (75.0, 0.25), (80.0, 0.3)):
        norms: dict[str, Any] = {"noise_variance": variance, "noise_signal": signal, "grad_sq_global": 1.0}
        noise.observe(arrays_of(view(Plan(0, (64,)), [record(0, **norms)])))
    weights = 0.9 ** np.arange(3)[::-1]
    assert noise.estimated == pytest.approx((weights @ [450, 75, 80]) / (weights @ [25, 0.25, 0.3]))
    assert noise.estimated < float(noise.expected) < 64, "the first global batch still counts"
