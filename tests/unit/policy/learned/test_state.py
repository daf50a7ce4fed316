"""The state of a learned policy: every number is right, and an unknown value is never a number."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.messages import LinkView, Plan, ServerView, SystemSample, WindowRecord
from dynamix_ps.policy.base import View
from dynamix_ps.policy.learned.features import ALL, NAMES, SHARED
from dynamix_ps.policy.learned.rewards import GoodputReward
from dynamix_ps.policy.learned.state import StateBuilder
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.ppo.network import Normaliser
from dynamix_ps.policy.window_arrays import arrays_of
from tests.control_plane import record, run_under, stacked, view

MEASURED = {
    "push_bytes_per_s": 1e6,
    "pull_bytes_per_s": 2e6,
    "retransmits_per_s": 3.0,
    "rtt_s": 0.002,
    "push_busy": 0.25,
    "network_source": "ebpf",
    "cpu_cores": 2.0,
    "throttled": 0.1,
    "memory_ratio": 0.3,
    "accuracy_std": 0.05,
    "noise_variance": 640.0,
    "noise_signal": 2.0,
    "epoch": 1.5,
}


def _noise_after(windows: int, variance: float, signal: float, grad_sq: float, batch: int = 128) -> float:
    """Equal estimates so many times, after what stands for them before the first."""
    kept = 0.9**windows
    prior = kept * (1 - 0.9**3)
    variance, signal = ((1 - kept) * part / grad_sq for part in (variance, signal))
    return (prior * batch / 2 + variance) / (prior / 2 + signal)


def row(builder: StateBuilder, seen: View, rank: int = 0) -> dict[str, float]:
    return dict(zip(NAMES, builder.observe(arrays_of(seen)).rows[rank], strict=True))


def with_sides(seen: View) -> View:
    links = tuple(LinkView(rank, pull_retransmits_per_s=7.0, pull_busy=0.5, push_difference=-0.01) for rank in range(2))
    busy, idle = SystemSample(cpu_ratio=1.5, cpu_cores=2.0), SystemSample(cpu_ratio=0.1, cpu_cores=2.0)
    servers = (ServerView("server-0", unread_bytes=1000.0, system=busy), ServerView("scheduler", system=idle))
    return dataclasses.replace(seen, links=links, servers=servers)


def test_every_number_of_a_fully_measured_window():
    plan = Plan(0, (96, 32))
    records: list[WindowRecord | None] = [
        record(0, batch_size=96, samples=1920, **MEASURED),
        record(1, batch_size=32, samples=640, **MEASURED),
    ]
    builder = StateBuilder(ClusterModel(2))
    builder.observe(arrays_of(with_sides(view(plan, records))))
    later = [
        dataclasses.replace(one, accuracy=0.6, global_accuracy=0.62, loss=0.75, global_loss=0.7) for one in records
    ]
    got = row(builder, with_sides(view(plan, list(later))))
    wanted = {
        "push_throughput": math.log1p(1e6),
        "pull_throughput": math.log1p(2e6),
        "push_retransmits": math.log1p(3),
        "pull_retransmits": math.log1p(7),
        "rtt": math.log1p(2000),
        "push_busy": 0.25,
        "pull_busy": 0.5,
        "sides_differ": -0.01,
        "cpu_ratio": 0.9,
        "cpu_use": 0.45,
        "throttled": 0.1,
        "memory": math.log1p(2e8 / 2**30),
        "memory_use": 0.3,
        "gpu_use": math.nan,
        "gpu_memory": math.nan,
        "accuracy": 0.6,
        "accuracy_gain": 0.1,
        "accuracy_std": 0.05,
        "local_loss": math.log1p(0.75),
        "local_loss_fall": 0.5,
        "iteration_time": 1.0,
        "compute_share": 0.5,
        "push_pull_share": 0.25,
        "wait_share": 0.125,
        "relative_speed": math.log2(1920 / 1280),
        "gradient_std": 0.3,
        "gradient_variance": 0.75,
        "batch": math.log2(96) / 10,
        "batch_share": 1.5,
        "loss": math.log1p(0.7),
        "loss_fall": 0.5,
        "global_accuracy": 0.62,
        "global_accuracy_gain": 0.1,
        "noise_scale": math.log2(_noise_after(2, 640.0, 2.0, records[0].grad_sq_global) / 128),
        "global_batch": 128 / 2048,
        "global_batch_size": 0.7,
        "workers": 1.0,
        "epoch": math.log1p(1.5),
        "server_cpu": 0.75,
        "server_unread": math.log1p(1000),
        "server_unsent": math.nan,
    }
    assert got == pytest.approx(wanted, nan_ok=True)


def test_without_probe_and_reports_of_servers_their_values_are_unknown_not_zero():
    got = row(StateBuilder(ClusterModel(1)), view(Plan(0, (64,)), [record(cpu_ratio=math.nan, memory_bytes=math.nan)]))
    unknown = {name for name, value in got.items() if math.isnan(value)}
    assert unknown == {
        "push_throughput", "pull_throughput", "push_retransmits", "pull_retransmits", "rtt", "push_busy", "pull_busy",
        "sides_differ", "cpu_ratio", "cpu_use", "throttled", "memory", "memory_use", "gpu_use", "gpu_memory",
        "accuracy_gain", "accuracy_std", "local_loss_fall", "loss_fall", "global_accuracy_gain", "noise_scale", "epoch",
        "server_cpu", "server_unread", "server_unsent",
    }  # fmt: skip


def test_a_worker_that_did_not_report_is_unknown_and_its_gain_spans_the_gap():
    builder, plan = StateBuilder(ClusterModel(2)), Plan(0, (64, 64))
    builder.observe(arrays_of(view(plan, [record(0), record(1, accuracy=0.2)])))
    absent = row(builder, view(plan, [record(0, window=1), None]), rank=1)
    assert all(math.isnan(absent[one.name]) for one in ALL if one not in SHARED)
    assert absent["loss"] == pytest.approx(math.log1p(1.4))
    back = row(builder, view(plan, [record(0, window=2), record(1, window=2, accuracy=0.5)]), rank=1)
    assert back["accuracy_gain"] == pytest.approx(0.3)


def test_the_unit_of_iteration_time_is_the_mean_of_the_first_three_windows():
    builder, plan = StateBuilder(ClusterModel(1)), Plan(0, (64,))
    for duration_s in (2.0, 4.0, 6.0):
        builder.observe(arrays_of(view(plan, [record(duration_s=duration_s)])))
    assert row(builder, view(plan, [record(duration_s=8.0)]))["iteration_time"] == pytest.approx(2.0)


def test_the_reference_size_is_the_mean_global_batch_of_the_same_windows() -> None:
    builder, known = StateBuilder(ClusterModel(1, 2)), []
    for window, sizes in enumerate([(64, 64), (96, 64), (128, 64), (1024, 1024), (32, 32)]):
        if window == 4:
            builder.restart(np.array([True]))
        plan = Plan(window, sizes)
        seen = stacked([arrays_of(view(plan, run_under(plan, window)))])
        known += builder.observe(seen).reference_size.tolist()
    assert known == [128.0, 144.0, 160.0, 160.0, 64.0]


def test_a_quota_is_not_forgotten_in_a_window_that_shows_none() -> None:
    builder = StateBuilder(ClusterModel(1, 1))
    held = dict(samples=640, iterations=10, compute_s=0.1, duration_s=2.0, cpu_ratio=0.2, cpu_cores=0.5)
    needed_s = []
    for throttled in (0.0, 0.01, 0.0, math.nan):
        window = arrays_of(view(Plan(0, (64,)), [record(0, batch_size=64, **held, throttled=throttled)]))
        needed_s.append(float(builder.observe(stacked([window])).compute_s.item()))
    assert needed_s == pytest.approx([0.01, 0.08, 0.08, 0.08])  # 0.4 CPU seconds in ten iterations, half a core
    builder.restart(np.array([True]))
    fresh = arrays_of(view(Plan(0, (64,)), [record(0, batch_size=64, **held, throttled=0.0)]))
    assert builder.observe(stacked([fresh])).compute_s.item() == pytest.approx(0.01)


def test_gradients_that_were_not_measured_are_unknown():
    got = row(StateBuilder(ClusterModel(1)), view(Plan(0, (64,)), [record(grad_sq_local=math.nan)]))
    assert math.isnan(got["gradient_variance"])


_number = st.floats(allow_nan=True, allow_infinity=False, width=32) | st.sampled_from([0.0, 1e30, -1e30, math.nan])
_optional = [f.name for f in dataclasses.fields(WindowRecord) if f.type == "float" and not f.name.endswith("_s")]


@given(st.lists(st.dictionaries(st.sampled_from(_optional), _number), min_size=1, max_size=4))
def test_any_values_whatever_give_numbers_within_the_documented_range_or_unknown(windows):
    builder, normaliser = StateBuilder(ClusterModel(2)), Normaliser.empty(len(NAMES))
    for number, changes in enumerate(windows):
        rows = builder.observe(arrays_of(view(Plan(0, (64, 64)), [record(0, number, **changes), None]))).rows
        for name, one, value in zip(NAMES, ALL, rows[0], strict=True):
            assert math.isnan(value) or one.low <= value <= one.high, name
        normaliser = normaliser.updated(rows)
        assert np.isfinite(normaliser.apply(rows)).all()


def test_names_are_unique():
    assert len(set(NAMES)) == len(NAMES)


def test_the_noise_scale_follows_while_gradients_shrink() -> None:
    """Early gradients are a hundred times larger and hardly noisy; they must not outweigh what follows."""
    builder, found = StateBuilder(ClusterModel(2)), []
    for signal, variance in [(25.0, 450.0)] * 2 + [(0.25, 75.0)] * 12:
        norms = {"noise_signal": signal, "noise_variance": variance, "grad_sq_global": signal + variance / 128}
        seen = view(Plan(0, (64, 64)), [record(rank, **norms) for rank in range(2)])
        found.append(float(builder.observe(arrays_of(seen)).noise_scale))
    assert 18 < found[1] < found[0] < 128  # the first batch stands for it until it is known
    assert found[-1] > 150  # of 300


def test_an_empty_place_is_in_no_number_and_who_comes_back_begins_anew() -> None:
    two, three = StateBuilder(ClusterModel(2)), StateBuilder(ClusterModel(3))
    records = [record(0), record(1, accuracy=0.2), record(2, accuracy=0.3)]
    three.observe(arrays_of(view(Plan(0, (64, 64, 64)), records)))
    two.observe(arrays_of(view(Plan(0, (64, 64)), records[:2])))
    there = View(1, Plan(1, (96, 64, 0)), ((32, 1024), (32, 1024), (0, 0)), (*records[:2], None))
    small = two.observe(arrays_of(view(Plan(1, (96, 64)), records[:2])))
    found = three.observe(arrays_of(there))
    np.testing.assert_array_equal(found.rows[:2], small.rows)
    reward = GoodputReward()
    before = np.array([64, 64, 0])
    assert reward.of_cluster(found, before) == reward.of_cluster(small, before[:2])
    back = row(three, view(Plan(2, (64, 64, 64)), records), rank=2)
    assert math.isnan(back["accuracy_gain"]) and math.isnan(back["local_loss_fall"])
