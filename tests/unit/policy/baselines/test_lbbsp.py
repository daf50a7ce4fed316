from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest

from dynamix_ps.policy.baselines.lbbsp import LbBspCpuPolicy, LbBspGpuPolicy
from dynamix_ps.policy.baselines.speed_forecast import SpeedForecast
from tests.policy_cluster import SmallCluster

UNKNOWN = np.full((2, 2), math.nan)


def forecast_errors(log_speeds: np.ndarray, uses: np.ndarray | None = None) -> tuple[float, float]:
    """Mean square error of forecasts of log speed, and of taking the last one for the next; the second half counts."""
    forecast, errors, still = SpeedForecast(1), [], []
    for window, log_speed in enumerate(log_speeds):
        if window > len(log_speeds) / 2:
            errors.append(float(np.log(forecast.next_per_s()[0])) - log_speed)
            still.append(log_speeds[window - 1] - log_speed)
        forecast.observe(np.exp([log_speed]), UNKNOWN[:1] if uses is None else uses[window, None])
    return float(np.square(errors).mean()), float(np.square(still).mean())


def test_steady_noise_is_forecast_better_than_by_the_last_speed() -> None:
    errors, still = forecast_errors(0.05 * np.random.default_rng(0).standard_normal(2000))
    assert errors < 0.72 * still  # one change alone would allow 0.75, two allow 0.67


def test_cpu_use_that_runs_ahead_of_the_speed_is_made_use_of() -> None:
    rng = np.random.default_rng(0)
    use = rng.uniform(0.2, 1.0, 400)
    speeds = np.log(np.roll(use, 1))  # of the window after
    errors, still = forecast_errors(speeds, np.column_stack((use, np.full(400, math.nan))))
    assert errors < 0.3 * still
    alone, _ = forecast_errors(speeds)
    assert errors < 0.6 * alone


def test_a_forecast_without_history_is_the_last_speed_and_nobody_unmeasured_has_one() -> None:
    forecast = SpeedForecast(2)
    forecast.observe(np.array([10.0, math.nan]), UNKNOWN)
    assert forecast.next_per_s()[0] == pytest.approx(10.0)
    assert math.isnan(forecast.next_per_s()[1])
    forecast.observe(np.array([5.0, math.nan]), UNKNOWN)
    assert forecast.next_per_s()[0] == pytest.approx(5.0)  # a jump is no trend


def test_the_forecast_of_a_worker_that_is_forgotten_begins_anew() -> None:
    rng = np.random.default_rng(1)
    forecast, fresh = SpeedForecast(2), SpeedForecast(1)
    for speeds in np.exp(0.3 * rng.standard_normal((30, 2))):
        forecast.observe(speeds, rng.random((2, 2)))
    known = forecast.next_per_s()
    forecast.forget(np.array([False, True]))
    assert forecast.next_per_s()[0] == known[0] and math.isnan(forecast.next_per_s()[1])
    for speeds, uses in zip(np.exp(0.3 * rng.standard_normal((5, 2))), rng.random((5, 2, 2)), strict=True):
        forecast.observe(speeds, uses)
        fresh.observe(speeds[1:], uses[1:])
        assert forecast.next_per_s()[1] == pytest.approx(fresh.next_per_s()[0])


def test_a_forecast_stays_finite_over_thousands_of_equal_windows() -> None:
    forecast = SpeedForecast(2)
    for _ in range(5000):
        forecast.observe(np.array([10.0, 20.0]), np.ones((2, 2)))
    assert forecast.next_per_s() == pytest.approx([10.0, 20.0])


def test_cpu_rule_splits_by_speed_at_once_and_keeps_the_global_batch() -> None:
    cluster = SmallCluster([300.0, 500.0, 1200.0], fixed_s=0.0, start=100, low=8)
    policy = LbBspCpuPolicy(3)
    assert cluster.step(policy).batch_sizes == (45, 75, 180)
    cluster.speeds = [1200.0, 500.0, 300.0]
    cluster.run(policy, 3)
    assert cluster.plan.batch_sizes == pytest.approx((180, 75, 45), abs=8)
    assert cluster.plan.global_batch == 300


def test_cpu_rule_reads_cpu_and_memory_of_the_right_worker() -> None:
    """Worker 1's speed follows its own CPU use of the window before, which worker 0 does not have."""
    rng = np.random.default_rng(0)
    cluster = SmallCluster([100.0, 100.0], fixed_s=0.0, start=256, low=8)
    policy = LbBspCpuPolicy(2)
    shares, speeds = [], []
    use = 1.0
    for _ in range(200):
        cluster.speeds[1] = 100 * use
        use = float(rng.choice([0.5, 1.0]))
        seen = cluster.view()
        second = seen.records[1]
        assert second is not None
        records = (seen.records[0], dataclasses.replace(second, cpu_ratio=use))
        cluster.plan = dataclasses.replace(
            seen.plan, batch_sizes=policy.decide(dataclasses.replace(seen, records=records)).batch_sizes
        )
        shares.append(cluster.plan.batch_sizes[1])
        speeds.append(use)
    assert np.corrcoef(shares[100:], speeds[100:])[0, 1] > 0.8


def test_cpu_rule_forecasts_anew_for_another_machine_in_the_place_of_a_lost_worker() -> None:
    """Of the lost one it had learned that each jump of its speed turns back."""
    cluster = SmallCluster([100.0, 100.0], fixed_s=0.0, start=96, low=8)
    policy = LbBspCpuPolicy(2)

    def run(speeds: Sequence[float]) -> tuple[int, ...]:
        for cluster.speeds[1] in speeds:
            cluster.step(policy)
        return cluster.plan.batch_sizes

    assert run((100.0, 200.0) * 20)[1] < 115, "it will be as fast as the other one"
    seen = cluster.view()
    alone = dataclasses.replace(seen.plan, batch_sizes=(192, 0))
    bounds, records = (seen.bounds[0], (0, 0)), (seen.records[0], None)
    assert policy.decide(dataclasses.replace(seen, plan=alone, bounds=bounds, records=records)).batch_sizes == (192, 0)
    assert run((100.0, 200.0)) == (64, 128)


def test_gpu_rule_moves_a_quarter_of_the_mean_from_slowest_to_fastest() -> None:
    cluster = SmallCluster([300.0, 500.0, 1200.0], start=128, low=8)
    assert cluster.step(LbBspGpuPolicy(3)).batch_sizes == (96, 128, 160)


def test_gpu_rule_halves_the_step_and_doubles_the_watch_where_a_move_turns_back() -> None:
    cluster = SmallCluster([100.0, 90.0], fixed_s=0.0, start=64, low=8)
    policy = LbBspGpuPolicy(2)
    cluster.step(policy)
    assert cluster.plan.batch_sizes == (80, 48)
    cluster.step(policy)
    assert cluster.plan.batch_sizes == (72, 56)
    cluster.step(policy)
    assert cluster.plan.batch_sizes == (72, 56)  # watches
    cluster.step(policy)
    assert cluster.plan.batch_sizes == (64, 64)
    cluster.run(policy, 40)
    assert np.ptp(cluster.compute_s(cluster.plan.batch_sizes)) < 0.04
    assert cluster.plan.global_batch == 128


def test_gpu_rule_takes_large_steps_again_where_the_straggler_stays_the_same() -> None:
    cluster = SmallCluster([100.0, 90.0], fixed_s=0.0, start=64, low=8)
    policy = LbBspGpuPolicy(2)
    cluster.run(policy, 60)
    cluster.speeds = [30.0, 90.0]
    cluster.run(policy, 40)
    assert cluster.plan.batch_sizes == pytest.approx((32, 96), abs=8)


def test_gpu_rule_gives_nothing_to_a_worker_without_memory_and_respects_bounds() -> None:
    cluster = SmallCluster([300.0, 500.0, 1200.0], start=128, low=100, high=140)
    seen = cluster.view()
    last = seen.records[2]
    assert last is not None
    full = dataclasses.replace(seen, records=(*seen.records[:2], dataclasses.replace(last, gpu_memory_ratio=0.97)))
    assert LbBspGpuPolicy(3).decide(full).batch_sizes == (116, 140, 128)
    assert LbBspGpuPolicy(3).decide(seen).batch_sizes == (116, 128, 140)
