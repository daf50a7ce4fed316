"""What batch sizes are worth in samples where losses are means over tokens."""

from __future__ import annotations

import math

import pytest

from dynamix_ps.errors import TrainingError
from dynamix_ps.metrics.noise import estimate
from worker_hooks.exchange.trailer import GlobalView
from worker_hooks.exchange.units import INVALID, SizeWorth, factor_after_sum, units_or_invalid, weight_before_sum


def view(samples: tuple[int, ...], units: tuple[float, ...]) -> GlobalView:
    none = (0.0,) * len(samples)
    return GlobalView(
        sum(samples), 1.0, math.nan, None, samples, none, none, (), (0,) * len(samples), (none, none), units=units
    )


def test_without_units_sizes_are_samples() -> None:
    worth = SizeWorth()
    assert worth.sizes(view((8, 24), (0.0, 0.0)), (8, 24)) == (8, 24)
    assert worth.seen == (0.0, 0)


def test_sizes_in_tokens_are_what_weights_of_all_tokens_are_worth() -> None:
    assert SizeWorth().sizes(view((8, 24), (81.0, 230.0)), (81, 230)) == (81, 230)
    assert SizeWorth().sizes(view((8, 24), (0.0, 0.0)), (90, 230)) == (80.0, 240.0), "the loss is a mean over samples"


def test_units_count_by_how_many_a_sample_has_so_far() -> None:
    worth = SizeWorth()
    assert worth.sizes(view((8, 24), (40.0, 280.0)), (8, 24)) == (4.0, 28.0)  # 10 per sample
    assert worth.sizes(view((8, 24), (320.0, 0.0)), (8, 24)) == (32.0, 0.0)
    assert worth.sizes(view((4, 4), (0.0, 260.0)), (4, 4)) == (0.0, 260 / 12.5)  # 900 in 72 samples
    resumed = SizeWorth(worth.seen)
    assert resumed.sizes(view((8, 8), (100.0, 100.0)), (8, 8)) == worth.sizes(view((8, 8), (100.0, 100.0)), (8, 8))


def test_the_noise_of_one_sample_does_not_depend_on_the_unit() -> None:
    """A hundred tokens in every sample are a hundred times less noise in each of them."""
    sizes = SizeWorth().sizes(view((8, 24), (800.0, 2400.0)), (8, 24))
    assert estimate(sizes, (3.0, 2.0), 1.5) == estimate((8, 24), (3.0, 2.0), 1.5)


def test_weight_and_factor_make_the_sum_a_mean() -> None:
    units = (30.0, 0.0, 10.0)
    factor = factor_after_sum(view((8, 8, 16), units), 32, iteration=0)
    assert [weight_before_sum(one, 32, 3) * factor for one in units] == pytest.approx([0.75, 0.0, 0.25])


def test_a_worker_alone_multiplies_nothing() -> None:
    assert weight_before_sum(30.7, 8, 1) * factor_after_sum(view((8,), (30.7,)), 8, iteration=0) == 1.0


@pytest.mark.parametrize("number", [-3.0, math.nan, math.inf])
def test_what_is_no_number_of_units_is_named(number: float) -> None:
    assert units_or_invalid(number) == INVALID
    assert weight_before_sum(INVALID, 8, 2) == 0.0
    with pytest.raises(TrainingError, match=r"is no number from 0 on in iteration 7 on worker 1; .*number of tokens"):
        factor_after_sum(view((4, 4), (1.0, INVALID)), 8, iteration=7)


def test_a_mean_over_nothing_is_refused() -> None:
    with pytest.raises(TrainingError, match=r"adds up to 0 over all workers in iteration 7, .*mean over nothing"):
        factor_after_sum(view((4, 4), (0.0, 0.0)), 8, iteration=7)
