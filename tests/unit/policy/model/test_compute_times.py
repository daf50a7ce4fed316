"""Compute times: what a worker needs at sizes that it has not run, in clusters that change."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from dynamix_ps.policy.model.compute_times import FIXED_PART, Array, ComputeTimes, balance, sustained_s

FIXED_S = np.array([0.02, 0.05, 0.01, 0.03])
PER_SAMPLE_S = np.array([1e-3, 2e-4, 5e-4, 4e-3])


def seconds(sizes: ArrayLike, slower: ArrayLike = 1.0) -> Array:
    return np.asarray((FIXED_S + PER_SAMPLE_S * np.asarray(sizes)) * np.asarray(slower))


def seen_at(*sizes: ArrayLike) -> ComputeTimes:
    times = ComputeTimes(4)
    for one in sizes:
        times.observe(one, seconds(one))
    return times


def explored(rng: np.random.Generator) -> NDArray[np.float64]:
    return np.rint(100 * 2 ** rng.uniform(-1, 1, 4))


def test_tells_the_fixed_part_from_the_time_per_sample() -> None:
    times = seen_at([100] * 4, [100] * 4, [150, 60, 120, 200], [50, 200, 300, 70])
    np.testing.assert_allclose(times.now.fixed_s, FIXED_S, rtol=0.1)  # what was expected still counts a little
    np.testing.assert_allclose(times.now.rates_per_s, 1 / PER_SAMPLE_S, rtol=0.06)
    np.testing.assert_allclose(times.now.seconds([500, 20, 64, 10]), seconds([500, 20, 64, 10]), rtol=0.1)


def test_one_size_tells_nothing_of_the_fixed_part() -> None:
    times = seen_at([100] * 4, [100] * 4)
    np.testing.assert_allclose(times.now.seconds([200] * 4), (2 - FIXED_PART) * seconds([100] * 4))


def test_sizes_that_differ_by_less_than_times_scatter_tell_hardly_more() -> None:
    rng, times = np.random.default_rng(3), ComputeTimes(4)
    for _ in range(20):
        sizes = np.rint(200 * (1 + 0.02 * rng.standard_normal(4)))
        times.observe(sizes, 1e-3 * sizes * (1 + 0.05 * rng.standard_normal(4)))
    assert (np.abs(times.now.fixed_s / 0.2 - FIXED_PART) < 0.15).all()


def test_a_worker_whose_times_seem_not_to_grow_is_not_given_nearly_everything() -> None:
    times = ComputeTimes(4)
    for size in (80, 120) * 10:
        times.observe([size] * 4, seconds([100] * 4))
    assert (times.now.seconds([1000] * 4) > 2 * seconds([100] * 4)).all()


def test_a_slow_first_window_is_soon_forgotten() -> None:
    times = ComputeTimes(4)
    times.observe([100] * 4, seconds([100] * 4, 1.5))
    for sizes in ([150, 80, 120, 200], [80, 120, 90, 70], [120, 90, 160, 110]):
        times.observe(sizes, seconds(sizes))
    np.testing.assert_allclose(times.now.seconds([100] * 4), seconds([100] * 4), rtol=0.05)


def test_a_quota_counts_by_cpu_time_and_only_where_it_throttles() -> None:
    # 0.1 s measured; 0.08 CPU seconds need 0.32 s with a quarter of a core
    assert sustained_s(0.1, 0.08, 0.25, 0.05) == pytest.approx(0.32)
    assert sustained_s(0.1, 0.08, 0.25, 0.0) == pytest.approx(0.1)  # no quota: threads that spin
    assert sustained_s(0.4, 0.08, 0.25, 0.7) == pytest.approx(0.4)  # held up by more than the quota
    for unknown in ((np.nan, 0.25, 0.05), (0.08, np.nan, 0.05), (0.08, 0.0, 0.05), (0.08, 0.25, np.nan)):
        assert sustained_s(0.1, *unknown) == pytest.approx(0.1)
    assert np.isnan(sustained_s(np.nan, np.nan, np.nan, np.nan))


def test_a_worker_that_becomes_slow_and_gets_smaller_batches_seems_slow_not_fixed() -> None:
    rng = np.random.default_rng(0)
    times, sizes = seen_at([100] * 4, [150, 80, 120, 200], [80, 120, 90, 100]), np.full(4, 100.0)
    slower = np.ones(4)
    for factor in (2.0, 4.0, 8.0):
        slower[0] = factor
        times.observe(sizes, seconds(sizes, slower))
        for _ in range(10):
            sizes[0] = np.rint(100 / factor * rng.uniform(0.9, 1.1))
            times.observe(sizes, seconds(sizes, slower))
    np.testing.assert_allclose(times.now.seconds([100] * 4), seconds([100] * 4, slower), rtol=0.1)
    assert times.now.fixed_s[0] == pytest.approx(8 * FIXED_S[0], rel=0.2)


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_a_jump_shows_at_once_while_all_sizes_move(factor: float) -> None:
    rng = np.random.default_rng(1)
    times = seen_at(*(explored(rng) for _ in range(10)))
    slower = np.array([1.0, factor, 1.0, 1.0])
    sizes = explored(rng)
    times.observe(sizes, seconds(sizes, slower))
    np.testing.assert_allclose(times.now.seconds([100] * 4), seconds([100] * 4, slower), rtol=0.05)


def test_noise_is_smoothed_and_a_jump_at_one_size_is_not() -> None:
    times = seen_at([100] * 4, [150] * 4, [100] * 4)
    times.observe([100] * 4, seconds([100] * 4, 1.1))
    np.testing.assert_allclose(times.now.seconds([100] * 4), seconds([100] * 4, 1.05), rtol=0.03)
    times.observe([100] * 4, seconds([100] * 4, 4.0))
    np.testing.assert_allclose(times.now.seconds([100] * 4), seconds([100] * 4, 4.0), rtol=0.01)


def expecting(factor: float) -> ComputeTimes:
    """After many sizes, the first worker is expected to become slower by a factor."""
    rng = np.random.default_rng(4)
    times = seen_at(*(explored(rng) for _ in range(30)))
    times.expect(np.array([factor, 1.0, 1.0, 1.0]))
    return times


def test_what_is_expected_holds_for_the_coming_window_alone() -> None:
    times = expecting(2.5)
    np.testing.assert_allclose(times.now.seconds([100] * 4), seconds([100] * 4), rtol=0.05)
    np.testing.assert_allclose(times.coming.seconds([100] * 4), seconds([100] * 4, [2.5, 1, 1, 1]), rtol=0.05)
    np.testing.assert_allclose(times.coming.fixed_s, times.now.fixed_s * [2.5, 1, 1, 1])
    np.testing.assert_allclose(times.coming.rates_per_s, times.now.rates_per_s / [2.5, 1, 1, 1])
    times.observe([np.nan, 100, 100, 100], seconds([100] * 4))  # not measured: nothing is known to have changed
    np.testing.assert_allclose(times.now.seconds([100] * 4), seconds([100] * 4), rtol=0.05)
    assert times.coming is times.now


@pytest.mark.parametrize("real", [1.0, 1.5, 2.5, 4.0, 6.0])
@pytest.mark.parametrize("size", [40, 100, 250])
def test_whether_it_comes_true_or_not_the_window_tells_the_level_and_the_line_stays(real: float, size: int) -> None:
    """Sizes that fit the forecast make the time look unchanged, which does not mean a large fixed part."""
    times, sizes = expecting(2.5), [size, 100, 100, 100]
    times.observe(sizes, seconds(sizes, [real, 1, 1, 1]))
    np.testing.assert_allclose(times.now.seconds([100] * 4), seconds([100] * 4, [real, 1, 1, 1]), rtol=0.12)
    np.testing.assert_allclose(times.now.seconds([300] * 4), seconds([300] * 4, [real, 1, 1, 1]), rtol=0.12)


def test_a_worker_without_samples_or_time_teaches_nothing() -> None:
    times = ComputeTimes(3)
    times.observe([64, 64, 0], [0.5, np.nan, 0.5])
    assert times.known.tolist() == [True, False, False]
    for absurd in (0.0, -1.0, 1e-9, 1e9, np.inf, np.nan):
        times.observe([64, 64, 64], [absurd, absurd, absurd])
    assert times.known.tolist() == [True, False, False]
    assert times.now.seconds([64, 64, 64])[0] == pytest.approx(0.5)
    assert np.isnan(times.now.rates_per_s[1:]).all()


def test_every_environment_is_by_itself_and_so_is_every_worker_that_is_forgotten() -> None:
    """(environments, workers) equals row by row."""
    rng = np.random.default_rng(2)
    many, rows = ComputeTimes(3, 4), [ComputeTimes(4) for _ in range(3)]
    one = np.array([False, False, True, False])
    for step in range(30):
        if step == 15:
            many.forget(np.array([one & False, one | True, one]))
            rows[1] = ComputeTimes(4)
            rows[2].forget(one)
            assert many.known.tolist() == [[True] * 4, [False] * 4, [True, True, False, True]]
        sizes = np.stack([explored(rng), np.full(4, 100.0), explored(rng)])
        times_s = seconds(sizes) * np.exp(0.3 * rng.standard_normal((3, 4)))
        times_s[rng.random((3, 4)) < 0.1] = np.nan
        many.observe(sizes, times_s)
        for row, size, time_s in zip(rows, sizes, times_s, strict=True):
            row.observe(size, time_s)
        np.testing.assert_array_equal(many.known, [row.known for row in rows])
        np.testing.assert_allclose(many.now.fixed_s, [row.now.fixed_s for row in rows], rtol=1e-9)
        np.testing.assert_allclose(many.now.rates_per_s, [row.now.rates_per_s for row in rows], rtol=1e-9)


def test_balanced_workers_finish_together() -> None:
    together_s, sizes = balance(np.array([400, 4000]), FIXED_S, 1 / PER_SAMPLE_S)
    np.testing.assert_allclose(sizes.sum(axis=-1), [400, 4000])
    np.testing.assert_allclose(seconds(sizes), np.repeat(together_s[:, None], 4, axis=1))
    # so little that the fixed part of one is too long: it gets nothing
    _, few = balance(np.array(10), FIXED_S, 1 / PER_SAMPLE_S)
    assert (few == 0).any() and (few >= 0).all()
