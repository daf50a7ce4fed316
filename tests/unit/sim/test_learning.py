"""Simulated training follows the theory of gradient noise, and its noise resembles that of a real run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dynamix_ps.metrics.noise import estimate
from dynamix_ps.policy.base import LR_RULES
from dynamix_ps.sim.cluster import learning, measure
from dynamix_ps.sim.cluster.parameters import Parameters, parameters_of
from dynamix_ps.sim.cluster.simulator import Simulator
from dynamix_ps.sim.scenario.load import Scenario
from dynamix_ps.sim.scenario.parts import SimulatedWorker, TrainingModel


def training(rule: str = "adascale", workers: int = 4, **changes: float) -> Parameters:
    scenario = {
        "name": "t",
        "workers": (SimulatedWorker(count=workers),),
        "lr_rule": rule,
        "training": TrainingModel(**changes),
    }
    return parameters_of([Scenario.model_validate(scenario)])


def progress(parameters: Parameters, noise: float, batch: float) -> float:
    return float(learning.step_progress(parameters, np.float32([noise]), np.float32([batch]))[0])


@pytest.mark.parametrize("tuning", [0.3, 0.8])
@pytest.mark.parametrize("batch", [64, 512])
def test_progress_of_a_step_is_that_of_gradient_descent_on_a_noisy_quadratic(tuning: float, batch: int):
    """Minimise |x|^2 / 2 with noisy gradients: what one step gains on average, over what a perfect one would."""
    rng, dimensions, noise_scale, b_0 = np.random.default_rng(0), 50, 300.0, 128
    point = np.ones(dimensions) / np.sqrt(dimensions)  # |G|^2 = 1, so tr Sigma = the noise scale
    step = tuning / (1 + noise_scale / b_0) * (1 + noise_scale / b_0) / (1 + noise_scale / batch)
    noise = rng.standard_normal((20_000, dimensions)) * np.sqrt(noise_scale / batch / dimensions)
    after = point - step * (point + noise)
    gained = 1 - (after**2).sum(axis=1).mean()
    assert progress(training(tuning=tuning), noise_scale, batch) == pytest.approx(gained, abs=0.01)


def test_rules_agree_at_the_batch_the_script_was_tuned_for():
    values = [progress(training(rule), 500, 128) for rule in LR_RULES]
    assert values == pytest.approx([values[0]] * len(LR_RULES))


def test_with_the_linear_rule_a_batch_far_beyond_the_noise_scale_diverges_and_adascale_does_not():
    assert progress(training("linear"), 100, 4096) < 0 < progress(training("adascale"), 100, 4096)
    assert progress(training("none"), 5000, 128) < progress(training("none"), 5000, 512)


def test_diverging_training_never_gets_below_its_start():
    wild = Simulator(training("linear", noise_scale=1.0, noise_growth=0.0), np.random.default_rng(0))
    for _ in range(20):
        window = wild.step(np.full((1, 4), 4096))
    assert wild.progress[0] == 0
    assert window.global_accuracy[0] == pytest.approx(0.1, abs=0.01)


def test_the_noise_scale_grows_as_the_loss_falls():
    parameters = training(noise_scale=100.0, noise_growth=1.5, decay=1.0, progress_scale=10.0)
    late = learning.excess_loss(parameters, np.float32([90.0]))
    assert late[0] == pytest.approx(0.1)
    assert learning.noise_scale(parameters, late)[0] == pytest.approx(100 * 10**1.5, rel=1e-4)


def test_large_batches_cost_test_accuracy_and_small_ones_give_it_back():
    simulator = Simulator(training(gap=0.1, gap_batch=500.0, progress_scale=5.0), np.random.default_rng(0))
    for _ in range(100):
        simulator.step(np.full((1, 4), 4096))
    with_large = simulator.test_accuracy[0]
    for _ in range(100):
        simulator.step(np.full((1, 4), 8))
    assert with_large < 0.96 * simulator.test_accuracy[0]


def gradients(parameters: Parameters, sizes: list[int], noise: float, rng: np.random.Generator) -> measure.Gradients:
    at = measure.TrainingState(np.float32([0.5]), parameters.gradient_sq / 2, np.float32([noise]), np.float32([1.0]))
    draws = rng.standard_normal((measure.DRAWS, 1, len(sizes)), dtype=np.float32)
    luck = rng.standard_normal(1, dtype=np.float32)
    return measure.gradients(parameters, at, np.array([sizes], dtype=np.float32), draws, luck)


def test_estimates_of_the_noise_scale_are_those_of_the_real_estimator_and_right_on_average():
    parameters, rng, sizes = training(gradient_sq=4.0), np.random.default_rng(0), [16, 32, 64, 288]
    variance, signal = [], []
    for _ in range(2000):
        got = gradients(parameters, sizes, 800.0, rng)
        real = estimate(sizes, got.local[0].tolist(), float(got.whole[0]))
        assert got.variance[0] == pytest.approx(real.variance, rel=1e-3)
        assert got.signal[0] == pytest.approx(real.signal, rel=1e-2, abs=1e-2)
        variance.append(got.variance[0])
        signal.append(got.signal[0])
    assert np.mean(signal) == pytest.approx(4.0 * 0.5, rel=0.05)
    assert np.mean(variance) == pytest.approx(800 * 4.0 * 0.5, rel=0.02)


def test_estimates_of_the_variance_do_not_depend_on_how_large_the_true_gradient_is():
    parameters, sizes, scatter = training(), [16, 32, 64, 288], []
    for noise in (1.0, 1e5):
        rng = np.random.default_rng(0)
        variance = [gradients(parameters, sizes, noise, rng).variance[0] for _ in range(500)]
        scatter.append(np.std(variance) / np.mean(variance))
    assert scatter[0] == pytest.approx(scatter[1], rel=0.02)


def test_more_workers_estimate_the_noise_better_and_one_alone_not_at_all():
    spread = []
    for workers in (2, 16):
        rng, parameters = np.random.default_rng(0), training(workers=workers)
        spread.append(np.std([gradients(parameters, [64] * workers, 500.0, rng).variance[0] for _ in range(500)]))
    assert spread[1] < 0.5 * spread[0]
    assert np.isnan(gradients(training(workers=1), [64], 500.0, np.random.default_rng(0)).variance[0])


def test_losses_of_a_larger_batch_scatter_less():
    still = dataclasses.replace(training(), progress_scale=np.float32([1e9]))
    rng, scatter = np.random.default_rng(0), []
    for size in (16, 1600):
        simulator = Simulator(still, rng)
        scatter.append(np.std([simulator.step(np.full((1, 4), size)).loss for _ in range(300)]))
    assert scatter[0] / scatter[1] == pytest.approx(10, rel=0.15)
