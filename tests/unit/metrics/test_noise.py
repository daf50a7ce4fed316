"""The gradient noise scale of three unequal workers, on a problem where it is known in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.metrics.noise import GradientNoise, SmoothedNoise, estimate

SIZES = (16, 32, 80)
DEVIATIONS = np.array([0.5, 1.0, 2.0, 3.0] * 8)  # of one sample's gradient, per weight
VARIANCE = float((DEVIATIONS**2).sum())  # V
TRUE_GRADIENT = np.full(32, 0.2)
SIGNAL = float((TRUE_GRADIENT**2).sum())  # S
STEPS = 4000


def steps(rng: np.random.Generator, true_gradient: np.ndarray = TRUE_GRADIENT):
    """Loss |w - x|^2 / 2, x drawn from N(m, diag(d^2)): a sample's gradient is w - x, so V = sum d^2, S = |w - m|^2.

    Yields (|g_i|^2 of every worker, |g|^2), from every single sample.
    """
    total = sum(SIZES)
    for _ in range(STEPS):
        samples = true_gradient + DEVIATIONS * rng.standard_normal((total, len(DEVIATIONS)))
        locals_ = [part.mean(axis=0) for part in np.split(samples, np.cumsum(SIZES)[:-1])]
        whole = sum(size / total * local for size, local in zip(SIZES, locals_, strict=True))
        yield [float(local @ local) for local in locals_], float(whole @ whole)


@pytest.fixture(scope="module")
def drawn():
    return list(steps(np.random.default_rng(7)))


def test_the_mean_is_right_and_the_spread_below_any_single_worker(drawn):
    total = sum(SIZES)
    pooled = [estimate(SIZES, local, whole) for local, whole in drawn]
    assert np.mean([one.variance for one in pooled]) == pytest.approx(VARIANCE, rel=0.05)
    assert np.mean([one.signal for one in pooled]) == pytest.approx(SIGNAL, rel=0.05)
    for rank, size in enumerate(SIZES):
        variance = [(local[rank] - whole) / (1 / size - 1 / total) for local, whole in drawn]
        signal = [(total * whole - size * local[rank]) / (total - size) for local, whole in drawn]
        assert np.std([one.variance for one in pooled]) < np.std(variance)
        assert np.std([one.signal for one in pooled]) < np.std(signal)


def test_the_smoothed_scale_is_within_five_percent(drawn):
    """In windows of ten iterations, as workers report."""
    smoothed = SmoothedNoise(smoothing=0.99)
    for first in range(0, STEPS, 10):
        window = drawn[first : first + 10]
        noises = [estimate(SIZES, local, whole) for local, whole in window]
        mean = GradientNoise(np.mean([one.variance for one in noises]), np.mean([one.signal for one in noises]))
        smoothed.update(mean, np.mean([whole for _, whole in window]))
    assert smoothed.value.scale == pytest.approx(VARIANCE / SIGNAL, rel=0.05)


@pytest.mark.parametrize("weights", [(1, 1, 1), (16, 32, 80), (1 / 16, 1 / 32, 1 / 80)])
def test_no_other_obvious_weighting_of_the_workers_has_less_spread(weights, drawn):
    total = sum(SIZES)
    best = np.std([estimate(SIZES, local, whole).variance for local, whole in drawn])
    alone = np.array(
        [[(s - whole) / (1 / b - 1 / total) for b, s in zip(SIZES, local, strict=True)] for local, whole in drawn]
    )
    assert best < np.std(alone @ np.array(weights) / sum(weights))


@pytest.mark.slow
def test_a_large_true_gradient_does_not_disturb_the_variance():
    """Nothing of G is in V: with |G|^2 a thousand times V / B, the estimate is as good as without."""
    far = [estimate(SIZES, *row).variance for row in steps(np.random.default_rng(1), np.full(32, 4.0))]
    near = [estimate(SIZES, *row).variance for row in steps(np.random.default_rng(1), np.zeros(32))]
    assert np.std(far) < 1.1 * np.std(near)


def test_a_worker_without_samples_does_not_count():
    with_idle = estimate((16, 0, 32), (5.0, math.nan, 4.0), 3.0)
    assert with_idle == estimate((16, 32), (5.0, 4.0), 3.0)


@pytest.mark.parametrize(
    ("sizes", "squares", "whole"),
    [((64,), (1.0,), 1.0), ((64, 0), (1.0, math.nan), 1.0), ((8, 8), (1.0, math.nan), 1.0), ((8, 8), (1, 1), math.nan)],
)
def test_what_cannot_be_known_is_unknown(sizes, squares, whole):
    noise = estimate(sizes, squares, whole)
    assert math.isnan(noise.variance) and math.isnan(noise.signal) and math.isnan(noise.scale)


@pytest.mark.parametrize("noise", [GradientNoise(-1.0, 1.0), GradientNoise(1.0, -1.0), GradientNoise(1.0, 0.0)])
def test_a_scale_needs_both_parts_to_be_positive(noise):
    assert math.isnan(noise.scale)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.floats(0, 0.99))
def test_smoothing_stays_within_what_it_saw_and_begins_with_the_first(values, smoothing):
    smoothed = SmoothedNoise(smoothing)
    assert smoothed.update(GradientNoise(values[0], 1.0), 1.0).variance == pytest.approx(values[0])
    smoothed.update(GradientNoise(), math.nan)
    for value in values[1:]:
        smoothed.update(GradientNoise(value, 1.0), 1.0)
    assert min(values) - 1e-6 <= smoothed.value.variance <= max(values) + 1e-6
    assert smoothed.value.signal == pytest.approx(1.0)


def test_large_early_gradients_do_not_outweigh_later_ones():
    """The same noise scale at a hundredth of the gradient counts as much: 100, 100, ... then 400, 400, ..."""
    smoothed = SmoothedNoise(smoothing=0.5)
    for scale, size in [(100.0, 1e4)] * 10 + [(400.0, 1.0)] * 10:
        smoothed.update(GradientNoise(scale * size, size), size * (1 + scale / 100))
    assert smoothed.value.scale == pytest.approx(400.0, rel=0.01)
