"""Tiles: a staircase is told from a line, noise and changing speeds, and the last tile is filled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dynamix_ps.policy.model.tiles import SEARCHED, TILES, TileFinder

Reals = NDArray[np.float64]
HIGH = np.array([1024] * 4)


def stairs(sizes: Reals, tile: int, part: float) -> Reals:
    return np.asarray(0.01 + 3e-4 * (sizes + part * (np.ceil(sizes / tile) * tile - sizes)))


def explored(rng: np.random.Generator, sizes: Reals, tile: int) -> Reals:
    """Other sizes, some smaller and some larger, of a few tiles."""
    return np.clip(np.rint(sizes * np.exp(0.3 * rng.standard_normal(sizes.shape))), tile // 2, 5 * tile)


def found(tile: int, part: float = 0.8, scatter: float = 0.01, windows: int = 40, seed: int = 0) -> TileFinder:
    """After windows at many sizes, of four workers."""
    rng, tiles, sizes = np.random.default_rng(seed), TileFinder(4), np.full(4, 1.6 * tile)
    for _ in range(windows):
        sizes = explored(rng, sizes, tile)
        times_s = stairs(sizes, tile, part) * (1 + scatter * rng.standard_normal(4))
        tiles.observe(sizes, times_s, np.ones(4, dtype=bool))
    return tiles


@pytest.mark.parametrize("tile", [16, 32, 64, 128])
def test_a_staircase_is_found(tile: int) -> None:
    right = [(found(tile, seed=seed).samples == tile).mean() for seed in range(5)]
    assert np.mean(right) > 0.8


@pytest.mark.parametrize(("part", "scatter"), [(0.0, 0.01), (0.0, 0.1), (0.2, 0.01), (0.8, 0.5)])
def test_a_line_a_low_step_and_noise_are_no_staircase(part: float, scatter: float) -> None:
    wrong = [(found(64, part, scatter, windows=200, seed=seed).samples > 1).mean() for seed in range(10)]
    assert np.mean(wrong) <= 0.05


def test_a_new_speed_begins_anew() -> None:
    tiles = TileFinder(1)
    for slower, sizes in ((1.0, (60, 70, 130, 100)), (2.0, (100, 190, 110))):
        for size in sizes:
            tiles.observe(np.array([float(size)]), slower * stairs(np.array([size]), 64, 1.0), np.array([True]))
    assert tiles.samples.tolist() == [1], "three sizes at the new speed"
    for size in (75, 150, 200, 85):
        tiles.observe(np.array([float(size)]), 2.0 * stairs(np.array([size]), 64, 1.0), np.array([True]))
    assert tiles.samples.tolist() == [64]


def test_a_worker_that_changes_its_speed_has_no_tiles() -> None:
    rng, tiles, sizes = np.random.default_rng(1), TileFinder(40), np.full(40, 100.0)
    for window in range(200):
        sizes = explored(rng, sizes, 64)
        slower = np.where(rng.random(40) < 0.3, 2.5, 1.0) if window % 3 == 0 else np.ones(40)
        tiles.observe(sizes, stairs(sizes, 64, 0.0) * slower, np.ones(40, dtype=bool))
    assert (tiles.samples > 1).mean() <= 0.05


def test_few_sizes_tell_nothing_however_often_they_run() -> None:
    tiles = TileFinder(1)
    for size in (60, 70, 130, 100, 150) * 20:
        tiles.observe(np.array([float(size)]), stairs(np.array([size]), 64, 1.0), np.array([True]))
    assert tiles.samples.tolist() == [1]
    for size, samples in ((190, 1), (110, 64)):  # likely, then found
        tiles.observe(np.array([float(size)]), stairs(np.array([size]), 64, 1.0), np.array([True]))
        assert tiles.samples.tolist() == [samples]


def test_a_tile_that_was_found_stays_while_only_full_tiles_run() -> None:
    tiles = found(64, windows=60)
    before = tiles.samples.copy()
    assert (before == 64).all()
    for size in (49, 113, *range(64, 64 * 30, 64)):  # the first two fit tiles of 16 as well
        sizes = np.full(4, float(size))
        tiles.observe(sizes, stairs(sizes, 64, 0.8), np.ones(4, dtype=bool))
    assert tiles.samples.tolist() == before.tolist()


def test_windows_without_whole_sizes_or_a_time_teach_nothing() -> None:
    tiles = TileFinder(4)
    for size in range(60, 200, 7):
        sizes = np.array([size + 0.5, size, 0.0, size])
        tiles.observe(sizes, stairs(sizes, 64, 1.0), np.array([True, False, True, True]))
    assert tiles.samples.tolist() == [1, 1, 1, 64]


@given(st.lists(st.integers(0, 2000), min_size=4, max_size=4), st.lists(st.sampled_from(TILES), min_size=4, max_size=4))
def test_sizes_are_filled_up_within_their_bounds(sizes: list[int], samples: list[int]) -> None:
    tiles, wanted = TileFinder(4), np.minimum(sizes, HIGH)
    tiles.samples = np.array(samples)
    filled = tiles.filled(wanted, HIGH - 5)
    assert ((filled == wanted) | (filled % tiles.samples == 0)).all()
    assert ((filled >= wanted) & (filled - wanted < tiles.samples)).all()
    assert ((filled <= HIGH - 5) | (filled == wanted)).all()
    assert (tiles.filled(filled, HIGH - 5) == filled).all(), "full tiles stay"


def test_many_workers_take_turns_and_nobody_is_left_out() -> None:
    rng, tiles, sizes = np.random.default_rng(3), TileFinder(5 * SEARCHED), np.full(5 * SEARCHED, 100.0)
    for _ in range(60):
        sizes = explored(rng, sizes, 64)
        tiles.observe(sizes, stairs(sizes, 64, 0.9), sizes > 0)
    assert (tiles.samples == 64).mean() > 0.9


def test_every_environment_is_by_itself_and_so_is_every_worker_that_is_forgotten() -> None:
    rng = np.random.default_rng(2)
    many, rows, sizes = TileFinder(3, 4), [TileFinder(4) for _ in range(3)], np.full((3, 4), 100.0)
    for step in range(60):
        if step == 30:
            one = np.array([False, False, True, False])
            many.forget(np.array([one & False, one | True, one]))
            rows[1] = TileFinder(4)
            rows[2].forget(one)
            assert many.samples[2, 2] == 1 and (many.samples[2, [0, 1, 3]] > 1).any()
        sizes = explored(rng, sizes, 64)
        times_s, seen = stairs(sizes, 64, 0.9), rng.random((3, 4)) < 0.9
        many.observe(sizes, times_s, seen)
        for row, size, time_s, there in zip(rows, sizes, times_s, seen, strict=True):
            row.observe(size, time_s, there)
        assert many.samples.tolist() == [row.samples.tolist() for row in rows]
    assert (many.samples == 64).sum() > 8
