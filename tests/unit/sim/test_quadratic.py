"""The noisy quadratic is stochastic gradient descent, in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from dynamix_ps.sim.cluster.quadratic import (
    AVERAGE_DECAY,
    MODES,
    Moments,
    Reals,
    Spectrum,
    averaged_loss,
    noise_batches,
    power_law,
    trained,
    untrained,
)


def spectrum(steepest: float = 0.5, tail: float = 0.5, floor: float = 0.05, floor_tail: float = 0.2) -> Spectrum:
    return power_law(*(np.array(one) for one in (steepest, tail, floor, floor_tail)))


def after(given: Spectrum, rate: float, iterations: int, batches: float = 1.0) -> Moments:
    return trained(given, untrained(given), np.array(rate), np.array(batches), np.array(iterations))


def descend(given: Spectrum, rate: float, batches: float, iterations: int, runs: int) -> tuple[Reals, Reals]:
    """Losses of weights and of their average after descent with noisy gradients; mode j has loss x_j^2."""
    rng = np.random.default_rng(0)
    weights = np.tile(np.sqrt(given.start), (runs, 1))
    mean = weights.copy()
    noise = rate * np.sqrt(given.noise / batches)
    for _ in range(iterations):
        weights = weights - rate * given.curvature * weights + noise * rng.standard_normal(weights.shape)
        mean = AVERAGE_DECAY * mean + (1 - AVERAGE_DECAY) * weights
    return (weights**2).sum(axis=1), (mean**2).sum(axis=1)


@pytest.mark.parametrize(("rate", "batches"), [(1.0, 1.0), (0.25, 0.5), (2.0, 4.0)])
def test_the_expected_loss_is_that_of_noisy_descent(rate: float, batches: float) -> None:
    given = spectrum()
    weights, _ = descend(given, rate, batches, iterations=60, runs=4000)
    assert float(after(given, rate, 60, batches).loss) == pytest.approx(weights.mean(), rel=0.03)


def test_two_windows_are_one_of_both_lengths() -> None:
    given, rate, batches = spectrum(), np.array(0.7), np.array(2.0)
    half = trained(given, untrained(given), rate, batches, np.array(20))
    whole = trained(given, half, rate, batches, np.array(30))
    at_once = after(given, 0.7, 50, 2.0)
    assert float(whole.loss) == pytest.approx(float(at_once.loss), rel=1e-5)
    assert whole.average.tolist() == pytest.approx(at_once.average.tolist(), rel=1e-4)


@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_the_average_of_weights_lags_behind_while_the_loss_falls(rate: float) -> None:
    given = spectrum()
    _, mean = descend(given, rate, 1.0, iterations=60, runs=4000)
    moments = after(given, rate, 60)
    assert float(averaged_loss(given, moments, np.array(rate))) == pytest.approx(mean.mean(), rel=0.03)
    assert mean.mean() > 1.2 * float(moments.loss)


def test_averaging_takes_the_part_of_the_variance_that_it_takes_in_a_long_descent() -> None:
    given = spectrum(steepest=0.8, tail=2.0)
    _, mean = descend(given, 1.0, 1.0, iterations=4000, runs=500)
    long = after(given, 1.0, 4000)
    assert float(averaged_loss(given, long, np.array(1.0))) == pytest.approx(mean.mean(), rel=0.06)
    assert mean.mean() < 0.7 * float(long.loss)


def test_a_small_rate_is_slow_and_a_large_one_ends_on_a_higher_floor() -> None:
    given = spectrum()
    early = [float(after(given, rate, 20).loss) for rate in (0.25, 1.0)]
    late = [float(after(given, rate, 100_000).loss) for rate in (0.25, 1.0, 2.0)]
    assert early[0] > 1.2 * early[1]
    assert late == sorted(late)
    assert late[1] == pytest.approx(0.05, rel=0.02)  # the floor as given
    assert float(after(given, 1.0, 100_000, batches=4.0).loss) == pytest.approx(0.05 / 4, rel=0.02)


@pytest.mark.parametrize("rate", [4.1, 60.0, 1e6])
def test_beyond_twice_the_inverse_curvature_training_diverges_to_finite_numbers(rate: float) -> None:
    given = spectrum()
    assert float(after(given, 3.0, 200).loss) < 1
    diverged = float(after(given, rate, 200).loss)
    assert np.isfinite(diverged)
    assert diverged > 1.5


def test_gradients_become_noisier_as_training_goes_on_and_less_so_with_larger_batches() -> None:
    given = spectrum()
    start, later = untrained(given), after(given, 1.0, 100)
    assert noise_batches(given, later) > 5 * noise_batches(given, start)
    twice = given._replace(noise=2 * given.noise)
    assert float(noise_batches(twice, start)) == pytest.approx(2 * float(noise_batches(given, start)))


def test_modes_are_octaves_and_losses_at_the_start_sum_to_one() -> None:
    given = spectrum(steepest=0.8)
    assert given.curvature.shape == (MODES,)
    assert given.curvature[:2].tolist() == pytest.approx([0.8, 0.4])
    assert float(given.start.sum()) == pytest.approx(1)
