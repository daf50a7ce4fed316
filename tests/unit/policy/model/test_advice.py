"""What the model of the structured policy advises, on clusters with a known answer."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from dynamix_ps.messages import Plan
from dynamix_ps.policy.model import advice as advice_module
from dynamix_ps.policy.model.advice import ADVICE, SETTLING, Advisor
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.model.compute_times import balance
from dynamix_ps.policy.model.efficiency import TUNING
from dynamix_ps.policy.model.network_times import network_of
from dynamix_ps.policy.window_arrays import Array, WindowArrays, arrays_of
from dynamix_ps.sim.cluster.parameters import parameters_of
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.scenario.load import Scenario
from dynamix_ps.sim.scenario.parts import SimulatedWorker
from tests.control_plane import record, stacked, view
from tests.policy_cluster import WINDOW, SmallCluster


def observe(model: ClusterModel, advisor: Advisor, window: WindowArrays) -> Array:
    """The advice after one more window."""
    model.observe(window)
    return advisor.observe(window, network_of(window, model.compute_s), model.noise.expected)


def observers(*shape: int) -> tuple[ClusterModel, Advisor]:
    """Both of one model."""
    model = ClusterModel(*shape)
    return model, Advisor(model)


def advised(cluster: SmallCluster, *plans: tuple[int, ...]) -> tuple[dict[str, float], Advisor]:
    """The advice after some windows of each plan; the plan of the last stays."""
    model, advisor = observers(len(cluster.speeds))
    advice: Array = np.empty(0)
    for version, sizes in enumerate(plans):
        cluster.plan = Plan(version, sizes)
        for _ in range(4):
            advice = observe(model, advisor, arrays_of(cluster.view()))
    return dict(zip(ADVICE, advice.tolist(), strict=True)), advisor


@pytest.mark.parametrize(("noise_scale", "network_s"), [(2000, 0.1), (300, 0.1), (800, 0.4), (300, 0.0)])
def test_advised_global_batch_is_the_smallest_that_is_as_good_as_the_best_to_a_few_percent(
    noise_scale: float, network_s: float
) -> None:
    cluster = SmallCluster([2000] * 4, fixed_s=0.05, network_s=network_s, noise_scale=noise_scale, low=8)
    advice, _ = advised(cluster, (64,) * 4, (128,) * 4, (96,) * 4)

    def progress_per_s(batch: float) -> float:
        return 1 / ((1 + noise_scale / batch) * (0.05 + network_s + batch / 8000))

    best = math.sqrt((0.05 + network_s) * 8000 * noise_scale)
    chosen = 384 * 2 ** advice["advised_batch"]
    assert progress_per_s(chosen) > 0.94 * progress_per_s(best)
    assert progress_per_s(chosen / 2**0.75) < 0.96 * progress_per_s(best), "a smaller one would have done"
    growing_s = 384 / 8000
    assert advice["growing_part"] == pytest.approx(growing_s / (growing_s + 0.05 + network_s), rel=0.05)
    assert advice["step_progress"] == pytest.approx(TUNING * (2 - TUNING) / (1 + noise_scale / 384), rel=0.05)


def test_best_global_batch_keeps_to_the_bounds_and_to_the_rule_of_the_learning_rate() -> None:
    plans = (64,) * 4, (128,) * 4, (64,) * 4
    noisy: dict[str, Any] = {"speeds": [2000] * 4, "noise_scale": 4000, "low": 8}
    bounded, _ = advised(SmallCluster(**noisy, high=128), *plans)
    assert bounded["advised_batch"] == pytest.approx(1.0)
    # the learning rate does not follow B: beyond, there is little to gain
    rules = {
        rule: advised(SmallCluster(**noisy, lr_rule=rule), *plans)[0]["advised_batch"] for rule in ("none", "adascale")
    }
    assert rules["none"] < rules["adascale"] - 0.5


def test_what_workers_at_their_upper_bounds_cannot_take_costs_the_time_of_the_others() -> None:
    """Nothing but the bound of the quick ones keeps B from growing, as the slow one would hold up everybody."""
    noisy: dict[str, Any] = {"speeds": [4000, 4000, 200], "fixed_s": 0.05, "noise_scale": 50_000, "low": 8}
    plans = (64, 64, 64), (400, 400, 8), (500, 500, 16)
    free, _ = advised(SmallCluster(**noisy, high=8192), *plans)
    bounded, advisor = advised(SmallCluster(**noisy, high=512), *plans)
    assert free["advised_batch"] > 1
    assert abs(bounded["advised_batch"]) <= 0.25
    totals = np.array([600, 1104])
    together_s, _ = balance(totals, advisor._fixed_s, advisor._rates_per_s)
    sizes = np.array([512, 512, 80])
    slowest_s = (advisor._fixed_s + sizes / advisor._rates_per_s).max()
    found = together_s + advisor._overflow_s(totals, together_s, np.full(3, 512))
    assert found == pytest.approx([together_s[0], slowest_s], rel=1e-6)


@pytest.mark.parametrize(
    ("per_s", "chosen"),
    [
        ([0.5, 0.97, 0.98, 0.99, 1.0], 2),  # as good as the best, and no other is much nearer
        ([0.96, 0.97, 0.98, 0.99, 1.0], 0),
        ([0.5, 0.6, 0.7, 0.96, 1.0], 3),
        ([1.0, 0.9, 0.8, 0.7, 0.6], 0),
        ([-1.0, -2.0, -3.0, -4.0, -5.0], 0),  # whatever is done, training goes back
    ],
)
@pytest.mark.parametrize("way", [1, -1])
def test_of_sizes_that_are_as_good_the_nearest_to_the_first_unless_the_present_one_is_near(
    per_s: list[float], chosen: int, way: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first global batch is the smallest of the candidates, or the largest."""
    monkeypatch.setattr(advice_module, "PRESENT", 2)
    distance = np.arange(5)
    assert advice_module._nearest_good(np.array(per_s[::way]), distance[::way]) == (chosen if way == 1 else 4 - chosen)


def test_the_global_batch_stays_until_the_noise_scale_has_settled() -> None:
    model, advisor = observers(1, 4)
    window = arrays_of(SmallCluster([2000] * 4, noise_scale=4000, low=8).view())

    def wanted() -> float:
        return float(observe(model, advisor, stacked([window]))[0, 0])

    settling = SETTLING // WINDOW
    assert [wanted() for _ in range(settling)] == [0.0] * settling
    assert wanted() > 0.5
    model.restart(np.array([True]))
    advisor.restart(np.array([True]))
    assert wanted() == 0.0


def test_the_last_quarter_has_twice_the_global_batch_whatever_is_advised_by_then() -> None:
    cluster = SmallCluster([2000] * 3, fixed_s=0.02, network_s=0.005, noise_scale=20, low=8, lr_rule="sqrt")
    model, advisor = observers(3)

    def wanted(trained_ratio: float, batch_size: int) -> float:
        cluster.trained_ratio, cluster.plan = trained_ratio, Plan(cluster.plan.version + 1, (batch_size,) * 3)
        advice = observe(model, advisor, arrays_of(cluster.view()))
        return float(3 * batch_size * 2 ** advice[0])

    assert [wanted(0.74, 64) for _ in range(4)] == [192] * 4
    assert [wanted(0.75, 64), wanted(0.8, 100), wanted(1.0, 128)] == pytest.approx([384] * 3)
    assert wanted(math.nan, 128) == pytest.approx(192), "the end was none"
    assert wanted(0.9, 64) == pytest.approx(384)
    cluster.lr_ratio = 0.1
    assert wanted(0.9, 128) == pytest.approx(192), "the script lowers its learning rate itself"


def test_small_noise_is_no_reason_to_leave_the_first_global_batch() -> None:
    """A noise scale of 20 promises more progress per second at half of it, which real training does not keep."""
    cluster = SmallCluster([2000] * 4, fixed_s=0.02, network_s=0.005, noise_scale=20, low=8, lr_rule="sqrt")
    advice, _ = advised(cluster, (64,) * 4, (48,) * 4, (64,) * 4)
    assert advice["advised_batch"] == 0.0
    advice, _ = advised(cluster, (64,) * 4, (24,) * 4, (16,) * 4)
    assert 64 * 2 ** advice["advised_batch"] == pytest.approx(256)


def test_a_first_global_batch_that_is_far_too_large_is_left() -> None:
    cluster = SmallCluster([2000] * 4, fixed_s=0.001, network_s=0.0, noise_scale=20, start=1024, low=8)
    advice, _ = advised(cluster, (1024,) * 4, (512,) * 4, (1024,) * 4)
    assert advice["advised_batch"] <= -2


def test_all_finish_together() -> None:
    cluster = SmallCluster([4000, 1000, 2000], fixed_s=0.03, noise_scale=100)
    _, advisor = advised(cluster, (64,) * 3, (128, 90, 100))
    sizes = advisor.balanced(np.array(500))
    assert sizes.sum() == pytest.approx(500)
    times_s = cluster.compute_s(sizes.tolist())
    np.testing.assert_allclose(times_s, np.full(3, times_s.mean()), rtol=0.02)


def test_a_slow_link_takes_from_its_worker_twice_what_makes_it_late() -> None:
    # iterations of 0.13 s: 0.1 s of computing, and transfers of 0.05 s (one of 0.07 s) of which 0.04 s are hidden
    model, advisor = observers(4)
    records = [
        record(rank, batch_size=100, samples=2000, compute_s=2.0, duration_s=2.6, push_busy=transfer_s / 0.13)
        for rank, transfer_s in enumerate((0.05, 0.05, 0.05, 0.07))
    ]
    plan = Plan(0, (100,) * 4)
    advice = [observe(model, advisor, arrays_of(view(plan, list(records)))) for _ in range(9)][-1]
    # seen at one size: a fifth of the 0.1 s is fixed, 1250 samples per second beyond. The slow link is late by 0.02 s.
    # Half of a lead is lost, and 0.4 of computing hides the network, so shorter computing hides less
    sizes = advisor.balanced(np.array(400))
    gives_up_s = 0.04 / 0.6
    np.testing.assert_allclose(sizes, [100 + gives_up_s * 1250 / 4] * 3 + [100 - 0.75 * gives_up_s * 1250], rtol=1e-2)
    computing_s = 0.02 + sizes / 1250
    halfway_s = (computing_s + computing_s.max()) / 2
    chains_s = halfway_s + np.array((0.05, 0.05, 0.05, 0.07)) - 0.4 * halfway_s
    assert chains_s == pytest.approx([chains_s.mean()] * 4, rel=1e-2)
    assert advisor.longest_s(sizes) == pytest.approx(chains_s.mean(), rel=1e-2)
    assert advisor.longest_s(np.full(4, 100.0)) == pytest.approx(0.13, rel=1e-2)
    assert advice[1] == pytest.approx(0.08 / chains_s.mean(), rel=1e-2)


def test_where_most_speed_is_behind_slow_links_nobody_gives_up_samples() -> None:
    """What the others would have to take costs more than what the late ones win."""
    model, advisor = observers(3)
    records = [
        record(rank, batch_size=100, samples=2000, compute_s=2.0, duration_s=4.0, push_busy=busy)
        for rank, busy in enumerate((0.1, 0.5, 0.5))
    ]
    observe(model, advisor, arrays_of(view(Plan(0, (100,) * 3), list(records))))
    np.testing.assert_allclose(advisor.balanced(np.array(300)), [100] * 3)


def test_a_worker_that_is_slow_for_a_window_does_not_change_what_links_cost() -> None:
    """Computing hides more of the network in that window, for everybody."""
    scenario = Scenario.model_validate(
        {
            "name": "t",
            "workers": ({"count": 3}, {"bytes_per_s": 4e8}),
            "servers": {"bytes_per_s": 1e12},
            "jitter": 0.0,
            "trace": ({"at_s": 4, "until_s": 6, "every_s": 8, "what": "compute", "workers": (0,), "value": 2.0},),
            "initial_batch": 256,
        }
    )
    simulator = Simulator(parameters_of([scenario]), np.random.default_rng(0))
    model, advisor = observers(1, 4)
    slow, network_s = [], []
    for _ in range(12):
        slow.append(bool(simulator.conditions.slow.max() > 1))
        observe(model, advisor, simulator.step(simulator.sizes))
        network_s.append(advisor._network_s[0])
    assert 0 < sum(slow) < 6
    np.testing.assert_allclose(network_s, [[0.0165, 0.0165, 0.0165, 0.0505]] * 12, atol=1e-3)


def test_around_a_ring_a_slow_link_takes_from_nobody() -> None:
    """Whoever sends beside the slow link is done as late as its worker: fewer samples there would not help."""
    model, advisor = observers(3)
    records = [
        record(rank, batch_size=100, samples=2000, compute_s=2.0, duration_s=6.0, push_busy=busy)
        for rank, busy in enumerate((0.6, 0.6, 0.1))
    ]
    around = dataclasses.replace(view(Plan(0, (100,) * 3), list(records)), ring=True)
    observe(model, advisor, arrays_of(around))
    np.testing.assert_allclose(advisor.balanced(np.array(300)), [100] * 3)


def test_without_network_values_all_workers_have_the_same_network_time() -> None:
    model, advisor = observers(2)
    records = [record(rank, batch_size=100, samples=2000, compute_s=2.0, duration_s=4.0) for rank in range(2)]
    records[1] = record(1, batch_size=100, samples=2000, compute_s=1.0, duration_s=4.0)
    advice = observe(model, advisor, arrays_of(view(Plan(0, (100, 100)), list(records))))
    assert np.isfinite(advice).all()
    # 0.1 s and 0.05 s of computing, a fifth of it fixed; 0.1 s of network for both change nothing about the split
    together_s = (200 + 0.02 * 1250 + 0.01 * 2500) / 3750
    expected = [(together_s - 0.02) * 1250, (together_s - 0.01) * 2500]
    np.testing.assert_allclose(advisor.balanced(np.array(200)), expected)


def test_cpu_quotas_do_not_make_a_waiting_worker_seem_fast() -> None:
    """Quotas of 1, 1/2 and 1/4: all measure the same speed while they wait, and what they can sustain is 4 : 2 : 1."""
    workers = tuple(SimulatedWorker(fixed_s=0.0, per_sample_s=1e-4 / quota, quota=quota) for quota in (1.0, 0.5, 0.25))
    scenario = Scenario(name="quotas", workers=workers, jitter=0.0, initial_batch=128)
    simulator = Simulator(parameters_of([scenario]), np.random.default_rng(0))
    model, advisor = observers(1, 3)
    for sizes in ([128, 128, 128], [400, 300, 32], [300, 60, 200]):
        window = simulator.step(np.array([sizes]))
        observe(model, advisor, window)
        split = advisor.balanced(np.array([448]))[0]
        assert split[0] > split[1] > split[2]
    np.testing.assert_allclose(split, [256, 128, 64], rtol=0.15)
    seen = window.compute_s[0] / window.samples[0]
    assert seen[1] < 1.5 * seen[0]  # by measured time alone the second would be nearly as fast as the first


def test_nothing_measured_is_no_advice_and_an_even_split() -> None:
    model, advisor = observers(2)
    blank = [record(rank, compute_s=math.nan, duration_s=math.nan) for rank in range(2)]
    advice = observe(model, advisor, arrays_of(view(Plan(0, (64, 64)), list(blank))))
    assert np.isnan(advice).all()
    np.testing.assert_allclose(advisor.balanced(np.array(100)), [50, 50])


def test_a_worker_never_measured_counts_as_the_mean_of_the_others() -> None:
    model, advisor = observers(3)
    records = [record(0), record(1), None]
    observe(model, advisor, arrays_of(view(Plan(0, (64,) * 3), list(records))))
    np.testing.assert_allclose(advisor.balanced(np.array(300)), [100] * 3)


def test_restart_forgets_one_environment() -> None:
    cluster = SmallCluster([4000, 1000], noise_scale=100)
    _, advisor = advised(cluster, (64, 64))
    assert advisor.balanced(np.array(100))[0] > 60
    model, many = observers(2, 2)
    one = arrays_of(cluster.view())
    observe(model, many, stacked([one, one]))
    model.restart(np.array([True, False]))
    many.restart(np.array([True, False]))
    blank = dataclasses.replace(one, compute_s=np.full(2, np.nan))
    observe(model, many, stacked([blank, blank]))
    first, second = many.balanced(np.array([100, 100]))
    np.testing.assert_allclose(first, [50, 50])
    assert second[0] > 60
