"""A claim counts if it exceeds the scatter, at once or in the mean of some windows."""

from __future__ import annotations

import numpy as np
import pytest

from dynamix_ps.policy.evidence.claims import KEPT, Claims
from dynamix_ps.policy.evidence.measurements import LARGEST, Scatter, assumed

PLANNED = (64, 64, 64, 0)
FIVE_PERCENT = np.full(4, 0.05)


def test_a_large_claim_counts_at_once_and_a_small_one_when_it_lasts() -> None:
    assert Claims().see(PLANNED, (96, 48, 48, 0), FIVE_PERCENT).shares
    claims = Claims()
    counted = [claims.see(PLANNED, (68, 62, 62, 0), FIVE_PERCENT).shares for _ in range(KEPT)]
    assert not counted[0] and counted[-1], "6 % is more than three deviations of a mean of eight"


def test_claims_that_point_everywhere_never_count() -> None:
    claims, rng = Claims(), np.random.default_rng(0)
    for _ in range(200):
        wanted = 64 * np.exp(0.03 * rng.standard_normal(4)) * (np.array(PLANNED) > 0)
        assert not claims.see(PLANNED, wanted.tolist(), FIVE_PERCENT).shares


def test_a_larger_batch_with_the_same_shares_claims_nothing_of_the_workers() -> None:
    counts = Claims().see(PLANNED, (128, 128, 128, 0), FIVE_PERCENT)
    assert counts.batch and not counts.shares


def test_advice_that_goes_up_and_down_is_no_evidence_for_another_batch() -> None:
    claims = Claims()
    counted = [
        claims.see(PLANNED, (76, 76, 76, 0) if i % 2 else (54, 54, 54, 0), FIVE_PERCENT).batch for i in range(40)
    ]
    assert not any(counted[4:])


def test_a_new_plan_begins_anew() -> None:
    claims = Claims()
    for _ in range(KEPT - 1):
        claims.see(PLANNED, (67, 62, 63, 0), FIVE_PERCENT)
    claims.restart()
    assert not claims.see(PLANNED, (67, 62, 63, 0), FIVE_PERCENT).shares


def test_scatter_is_assumed_at_first_and_then_measured() -> None:
    scatter, rng = Scatter(), np.random.default_rng(1)
    assert scatter.deviation(assumed(1.0)) == pytest.approx(0.10)
    for _ in range(9):
        scatter.see(np.sqrt(2) * 0.01 * rng.standard_normal(1000))
    assert float(np.median(scatter.deviation(assumed(1.0)))) == pytest.approx(0.05, abs=0.005)


def test_one_large_change_is_no_scatter_and_there_is_a_largest_one() -> None:
    quiet, wild = Scatter(), Scatter()
    for number in range(9):
        quiet.see(np.array([0.7 if number == 4 else 0.01]))
        wild.see(np.array([1.0]))
    assert quiet.deviation(0.07)[0] < 0.07 and wild.deviation(0.07)[0] == LARGEST * 0.07
    quiet.see(np.array([np.nan]))
    assert np.isfinite(quiet.deviation(0.07)).all()
