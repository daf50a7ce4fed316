from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from dynamix_ps.messages import Plan
from dynamix_ps.policy.base import LR_RULES
from dynamix_ps.policy.learned.rewards import LARGEST, SMALLEST_PROGRESS, GoodputReward, PaperReward, Reward
from dynamix_ps.policy.learned.state import State, StateBuilder
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.model.efficiency import TUNING
from dynamix_ps.policy.model.network_times import network_of
from dynamix_ps.policy.window_arrays import arrays_of
from tests.control_plane import record, view

EFFICIENCY = TUNING * (2 - TUNING)  # at the first global batch, without noise


def state(sizes: tuple[int, ...] = (64, 128), **changes: Any) -> State:
    """After one window in which all went equally well; 20 iterations, 2 s."""
    records = [
        record(rank, batch_size=size, samples=20 * size, compute_s=1.0 if size else math.nan)
        for rank, size in enumerate(sizes)
    ]
    seen = StateBuilder(ClusterModel(len(sizes))).observe(arrays_of(view(Plan(0, sizes), list(records))))
    in_window = {name: value for name, value in changes.items() if hasattr(seen.window, name)}
    window = dataclasses.replace(seen.window, **in_window)
    compute_s = window.compute_s / window.iterations
    network = network_of(window, compute_s)
    if "exposed_s" in changes:
        network = dataclasses.replace(network, exposed_s=changes.pop("exposed_s"))
    others: dict[str, Any] = {"network": network, "compute_s": compute_s}
    others |= {name: value for name, value in changes.items() if name not in in_window}
    return dataclasses.replace(seen, window=window, **others)


def sizes(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


HAPPENED: dict[str, Any] = {
    "accuracy": np.array([0.6, 0.8]),
    "accuracy_gain": np.array([0.1, -0.2]),
    "grad_norm_std": np.array([0.3, 0.3]),
    "gradient_variance": np.array([0.5, 0.1]),
    "iteration_time": np.array(1.2),
}


def test_the_published_formula() -> None:
    got = PaperReward(alpha=2.0, beta=0.5, delta=0.1, eta=0.25).of_worker(state(**HAPPENED), sizes(64, 64))
    first = 0.6 + 2.0 * 0.1 - 0.5 * 1.2 - 0.1 * (6 - 5) - 0.25 * (0.5 + 0.3)
    second = 0.8 - 0.5 * 1.2 - 0.1 * (7 - 5) - 0.25 * (0.1 + 0.3)  # a loss of accuracy is no gain
    np.testing.assert_allclose(got, [first, second], rtol=1e-6)
    cluster = PaperReward(2.0, 0.5, 0.1, 0.25).of_cluster(state(**HAPPENED), sizes(64, 64))
    assert cluster == pytest.approx((first + second) / 2)


@pytest.mark.parametrize(
    ("weight", "quantity"),
    [
        ("alpha", {"accuracy_gain": np.array([0.9, 0.9])}),
        ("beta", {"iteration_time": np.array(3.0)}),
        ("delta", {"planned": sizes(256, 512)}),
        ("eta", {"gradient_variance": np.array([0.9, 0.9]), "grad_norm_std": np.array([2.0, 2.0])}),
    ],
)
def test_weight_0_leaves_a_term_of_the_paper_out(weight: str, quantity: dict[str, Any]) -> None:
    usual, changed = state(**HAPPENED), state(**(HAPPENED | quantity))
    with_all = PaperReward(1.0, 0.5, 0.1, 0.25)
    without = dataclasses.replace(with_all, **{weight: 0.0})
    before = sizes(64, 128)
    assert (with_all.of_worker(usual, before) != with_all.of_worker(changed, before)).all()
    np.testing.assert_array_equal(without.of_worker(usual, before), without.of_worker(changed, before))


@pytest.mark.parametrize(("reference", "now"), [(192, 192), (96, 192), (96, 384)])
def test_time_per_sample_is_the_iteration_time_over_the_global_batch(reference: float, now: int) -> None:
    seen = state((now // 3, now - now // 3), iteration_time=np.array(1.5), reference_size=np.array(reference))
    rest = {"alpha": 0.0, "delta": 0.0}
    nothing = PaperReward(beta=0.0, **rest).of_worker(seen, sizes(64, 64))
    per_iteration = PaperReward(beta=0.5, **rest).of_worker(seen, sizes(64, 64))
    per_sample = PaperReward(beta=0.5, **rest, time="per_sample").of_worker(seen, sizes(64, 64))
    np.testing.assert_allclose(nothing - per_iteration, 0.5 * 1.5)
    np.testing.assert_allclose(nothing - per_sample, 0.5 * 1.5 * reference / now)


def goodput(**weights: float) -> GoodputReward:
    return GoodputReward(**({"efficiency": 0.0, "throughput": 0.0, "change": 0.0, "balance": 0.0} | weights))


def test_goodput_term_by_term() -> None:
    seen, same = state(noise_scale=np.array(192.0 * 3), iteration_time=np.array(2.0)), sizes(64, 128)
    # B = B_0 = 192, N = 3 B: a quarter of a noiseless step; iterations take twice the reference
    assert goodput(efficiency=1.0).of_cluster(seen, same) == pytest.approx(math.log2(EFFICIENCY / 4))
    assert goodput(throughput=0.5).of_cluster(seen, same) == pytest.approx(-0.5)
    # 16 -> 64 and 128 -> 128: two doublings by two workers
    assert goodput(change=0.1).of_cluster(seen, sizes(16, 128)) == pytest.approx(-0.1)
    assert goodput(change=0.1).of_cluster(seen, same) == 0
    # computing 1 s and 3 s: both are half of the mean away from it
    unhidden = dataclasses.replace(seen.network, exposed_s=np.zeros(2))
    uneven = dataclasses.replace(seen, compute_s=np.array([1.0, 3.0]), network=unhidden)
    np.testing.assert_allclose(goodput(balance=0.1).of_worker(uneven, same), [-0.05, -0.05])
    everything = GoodputReward(1.0, 0.5, 0.1, 0.1)
    total = math.log2(EFFICIENCY / 4) - 0.5 - 0.1 - 0.05
    np.testing.assert_allclose(everything.of_worker(uneven, sizes(16, 128)), [total, total])
    assert goodput().of_cluster(uneven, sizes(1, 1)) == 0


def test_where_training_ends_with_larger_batches_samples_count_for_progress() -> None:
    ends: dict[str, Any] = {
        "lr_rule": np.array(LR_RULES.index("sqrt")),
        "lr_ratio": 1.0,
        "iteration_time": np.array(2.0),
    }
    both = goodput(efficiency=1.0, throughput=1.0)
    late, early = (state((256, 128), trained_ratio=ratio, reference_batch=96.0, **ends) for ratio in (0.8, 0.7))
    assert both.of_cluster(late, sizes(64, 128)) == pytest.approx(math.log2(4) - math.log2(2))
    assert both.of_cluster(early, sizes(64, 128)) < 0


def test_a_share_is_judged_by_what_of_the_workers_speed_was_used() -> None:
    # 20 * 192 samples in 2 s, by workers that can compute 1280 + 2560 per second
    np.testing.assert_allclose(goodput(throughput=1.0).of_share(state(), sizes(64, 128)), [-1.0, -1.0])
    balanced = state(compute_s=np.array([2.0, 2.0]))
    np.testing.assert_allclose(goodput(throughput=1.0).of_share(balanced, sizes(64, 128)), [0.0, 0.0], atol=1.0)
    uneven = state(compute_s=np.array([1.0, 4.0]))
    np.testing.assert_allclose(goodput(balance=1.0).of_share(uneven, sizes(64, 128)), [-0.6, -0.6])
    np.testing.assert_allclose(goodput(change=1.0).of_share(state(), sizes(64, 64)), [-0.5, -0.5])


def test_unknown_noise_takes_the_first_global_batch_for_it_and_standing_still_has_a_floor() -> None:
    unknown = state(noise_scale=np.array(math.nan))
    assert goodput(efficiency=1.0).of_cluster(unknown, sizes(64, 128)) == pytest.approx(math.log2(EFFICIENCY / 2))
    drowned = state(noise_scale=np.array(1e12))
    assert goodput(efficiency=1.0).of_cluster(drowned, sizes(64, 128)) == pytest.approx(math.log2(SMALLEST_PROGRESS))


@pytest.mark.parametrize(
    "reward",
    [PaperReward(eta=0.1), PaperReward(time="per_sample"), GoodputReward(), PaperReward(0, 0, 0, 0), goodput()],
)
@pytest.mark.parametrize("absurd", [math.nan, math.inf, -math.inf, 1e300, -1e300, 0.0])
@pytest.mark.parametrize(
    "name",
    [
        "accuracy", "accuracy_gain", "gradient_variance", "grad_norm_std", "compute_s", "samples", "speed",
        "iteration_time", "noise_scale", "duration_s", "reference_batch", "exposed_s", "reference_size",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_unknown_and_absurd_quantities_stay_finite(reward: Reward, absurd: float, name: str) -> None:
    of_cluster = ("iteration_time", "noise_scale", "duration_s", "reference_batch", "reference_size")
    shape = () if name in of_cluster else (2,)
    changes: dict[str, Any] = {name: np.full(shape, absurd)}
    seen = state(**changes)
    for values in (reward.of_cluster, reward.of_worker, reward.of_share):
        found = values(seen, sizes(64, 128))
        assert np.isfinite(found).all()
        assert (np.abs(found) <= LARGEST).all()


def test_sizes_of_0_and_absent_workers_count_for_nothing_absurd() -> None:
    nobody = state((0, 64), present=np.array([False, True]), accuracy=np.array([math.nan, 0.5]))
    for reward in (PaperReward(), PaperReward(time="per_sample"), GoodputReward()):
        assert np.isfinite(reward.of_worker(nobody, sizes(0, 64))).all()
    only_second = PaperReward().of_worker(nobody, sizes(0, 64))[1]
    assert PaperReward().of_cluster(nobody, sizes(0, 64)) == pytest.approx(only_second)
