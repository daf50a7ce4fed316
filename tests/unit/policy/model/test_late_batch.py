"""Larger batches near the end of training: how large."""

from __future__ import annotations

import numpy as np
import pytest

from dynamix_ps.policy.model.late_batch import LateBatch

CANDIDATES = np.array([[50.0], [100.0], [150.0], [200.0], [400.0]])
BEST = np.array([100.0])
DUE, NOT_DUE = np.array([True]), np.array([False])


def test_twice_what_was_advised_when_it_began_until_it_is_over() -> None:
    finish, duration_s = LateBatch(1), CANDIDATES / 1000
    assert finish.advise(NOT_DUE, BEST, CANDIDATES, duration_s) == [100]
    assert finish.advise(DUE, BEST, CANDIDATES, duration_s) == [200]
    assert finish.advise(DUE, 2 * BEST, CANDIDATES, duration_s) == [200], "not twice in turn"
    assert finish.advise(NOT_DUE, BEST, CANDIDATES, duration_s) == [100]
    assert finish.advise(DUE, 2 * BEST, CANDIDATES, duration_s) == [400]


@pytest.mark.parametrize(("durations_s", "chosen"), [
    ([0.05, 0.1, 0.15, 0.25, 0.5], 150),  # beyond, somebody is at an upper bound
    ([0.05, 0.1, 0.2, 0.3, 0.9], 100),
    ([0.05, 0.1, 0.2, 0.19, 0.3], 200),
])  # fmt: skip
def test_no_larger_than_where_fewer_samples_per_second_are_trained(durations_s: list[float], chosen: float) -> None:
    assert LateBatch(1).advise(DUE, BEST, CANDIDATES, np.array(durations_s)[:, None]) == [chosen]


def test_restart_forgets_one_environment() -> None:
    finish, candidates, best, due = LateBatch(2), CANDIDATES.repeat(2, axis=1), BEST.repeat(2), DUE.repeat(2)
    assert list(finish.advise(due, best, candidates, candidates)) == [200, 200]
    finish.restart(np.array([True, False]))
    assert list(finish.advise(due, 2 * best, candidates, candidates)) == [400, 200]
