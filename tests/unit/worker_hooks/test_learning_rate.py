from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.metrics.noise import GradientNoise
from worker_hooks.planning.learning_rate import LearningRate


def adascale(variance: float, signal: float, reference: int = 64) -> LearningRate:
    rate = LearningRate("adascale", reference, workers=4)
    for _ in range(200):
        rate.see(GradientNoise(variance, signal), iterations=10)
    return rate


def test_rules_by_the_ratio_alone() -> None:
    assert LearningRate("none", 64, 2).factor(256) == 1.0
    assert LearningRate("linear", 64, 2).factor(256) == 4.0
    assert LearningRate("sqrt", 64, 2).factor(256) == 2.0


def test_the_gain_of_the_paper() -> None:
    """r = (sigma^2 + mu^2) / (sigma^2 / s + mu^2), sigma^2 the variance of the mean of B0 samples."""
    rate = adascale(variance=640.0, signal=5.0)
    assert rate.factor(256) == pytest.approx((640 / 64 + 5) / (640 / 64 / 4 + 5))
    assert rate.factor(64) == pytest.approx(1.0)


def test_noise_alone_scales_linearly_and_none_of_it_not_at_all() -> None:
    assert adascale(1000.0, -3.0).factor(640) == pytest.approx(10.0)
    assert adascale(-1000.0, 3.0).factor(640) == pytest.approx(1.0)
    assert adascale(-1.0, -1.0).factor(640) == 1.0


def test_without_an_estimate_the_rate_is_the_scripts() -> None:
    rate = LearningRate("adascale", 64, 2)
    rate.see(GradientNoise(), 10)
    rate.see(GradientNoise(math.inf, 1.0), 10)
    assert rate.factor(1024) == 1.0


def test_estimates_are_averaged_as_the_paper_does() -> None:
    rate = LearningRate("adascale", 64, workers=4)
    rate.see(GradientNoise(100.0, 1.0), iterations=10)
    rate.see(GradientNoise(300.0, 2.0), iterations=10)
    kept = (1 - 4 / 1000) ** 10
    variance, signal = kept * 100 + 300, kept * 1 + 2  # up to a common factor
    assert rate.factor(640) == pytest.approx((variance / 64 + signal) / (variance / 640 + signal))


def test_a_run_that_continues_knows_what_was_known() -> None:
    before = adascale(640.0, 5.0)
    assert LearningRate("adascale", 64, 4, before.noise).factor(256) == before.factor(256)


def test_what_the_guard_leaves_multiplies_the_rule() -> None:
    rate = LearningRate("sqrt", 64, 2, guard=0.5)
    assert rate.step(256) == (1.0, 0.5)
    assert rate.step(16) == (0.25, 0.5)
    assert LearningRate("sqrt", 64, 2).step(256) == (2.0, 1.0)


@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=5), st.integers(1, 2**24), st.integers(1, 2**24))
def test_the_gain_lies_between_one_and_the_ratio(
    estimates: list[tuple[float, float]], reference: int, batch: int
) -> None:
    rate = LearningRate("adascale", reference, workers=8)
    for variance, signal in estimates:
        rate.see(GradientNoise(variance, signal), 10)
    low, high = sorted((1.0, batch / reference))
    assert low * (1 - 1e-9) <= rate.factor(batch) <= high * (1 + 1e-9)
