from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.policy.ppo.network import LIMIT, Normaliser


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matches_the_plain_formulas(dtype: type) -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(5, 3, (50, 4)).astype(dtype)
    rows[rng.random((50, 4)) < 0.3] = np.nan
    normaliser = Normaliser.empty(4)
    for part in np.array_split(rows, 7):
        normaliser = normaliser.updated(part)
    exact = rows.astype(np.float64)
    np.testing.assert_allclose(normaliser.mean, np.nanmean(exact, axis=0), rtol=1e-12)
    np.testing.assert_allclose(normaliser.spread / normaliser.count, np.nanvar(exact, axis=0), rtol=1e-12)
    known = ~np.isnan(rows)
    result = normaliser.apply(rows)
    assert result.dtype == np.float32
    expected = np.clip((exact - np.nanmean(exact, axis=0)) / np.nanstd(exact, axis=0), -LIMIT, LIMIT)
    np.testing.assert_allclose(result[:, :4][known], expected[known], rtol=1e-5, atol=1e-6)
    assert (result[:, :4][~known] == 0).all()
    np.testing.assert_array_equal(result[:, 4:], known)


def test_its_own_rows_stay_as_they_are() -> None:
    rows = np.array([[1.0, np.nan], [2.0, 3.0]])
    kept = rows.copy()
    Normaliser.empty(2).updated(rows).apply(rows)
    np.testing.assert_array_equal(rows, kept)


def test_what_never_varied_or_was_never_known_counts_as_unknown() -> None:
    normaliser = Normaliser.empty(3).updated(np.array([[7.0, np.nan, 1.0], [7.0, np.nan, 2.0]]))
    np.testing.assert_array_equal(normaliser.apply(np.array([[9.0, 1.0, 2.0]])), [[0, 0, 1, 0, 0, 1]])


def test_small_changes_of_large_numbers_are_seen() -> None:
    rows = 1e9 + np.arange(100.0)[:, None]
    normaliser = Normaliser.empty(1).updated(rows)
    np.testing.assert_allclose(normaliser.apply(rows)[:, 0].std(), 1, rtol=1e-5)


@given(
    st.lists(
        st.lists(st.floats(), min_size=3, max_size=3),
        min_size=1,
        max_size=6,
    ),
    st.floats(),
)
def test_always_finite(rows: list[list[float]], other: float) -> None:
    normaliser = Normaliser.empty(3)
    for row in rows:
        normaliser = normaliser.updated(np.array([row]))
        for seen in (row, [other, math.inf, 1e300]):
            result = normaliser.apply(np.array([seen]))
            assert np.isfinite(result).all()
            assert np.abs(result).max() <= LIMIT
