"""Recurrence: levels that come back with a period are forecast, all others are not."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from dynamix_ps.messages import Plan
from dynamix_ps.policy.model.recurrence import KEPT, Recurrence
from dynamix_ps.policy.window_arrays import WindowArrays, arrays_of
from tests.control_plane import run_under, stacked, view

Reals = NDArray[np.float64]
SLOW = 2.5
ANY_WINDOW = arrays_of(view(Plan(0, (64,)), run_under(Plan(0, (64,)), 0)))


def window(first_iteration: int, duration_s: float, iterations: int = 20) -> WindowArrays:
    return dataclasses.replace(
        ANY_WINDOW,
        first_iteration=np.asarray(first_iteration),
        iterations=np.asarray(iterations),
        duration_s=np.asarray(duration_s),
    )


def recurring(at_s: float, every_s: float = 4.5, slow_s: float = 1.5) -> float:
    return SLOW if at_s % every_s < slow_s else 1.0


class Run:
    """Windows of some 1.6 s, longer where a worker is slow; `level_at` is the level of all workers at a time."""

    def __init__(self, level_at: Callable[[float], Reals], workers: int, seed: int = 0, mean_s: float = 1.6) -> None:
        self.forecasts = Recurrence(workers)
        self.mean_s = mean_s
        self.dropped = itertools.repeat(0)  # iterations before each window that belong to no window
        self._level_at = level_at
        self._rng = np.random.default_rng(seed)
        self._at_s, self._iteration = 0.0, 0
        self._ahead: Reals = np.ones(workers)
        self._level: Reals = level_at(0.0)

    def windows(self, count: int) -> tuple[Reals, Reals]:
        """True and forecast changes of the log level from each window to the next, (count, workers)."""
        true, forecast = [], []
        for _ in range(count):
            pace_s = self.mean_s / 20 * np.exp(0.1 * self._rng.standard_normal())
            dropped = next(self.dropped)
            self._at_s += dropped * pace_s
            self._iteration += dropped
            level = self._level_at(self._at_s)
            true.append(np.log(level / self._level))
            forecast.append(np.log(self._ahead))
            duration_s = 20 * pace_s * (1 + 0.3 * (level.max() > 1.5))
            seen = level * np.exp(0.01 * self._rng.standard_normal(level.shape))
            self._ahead = self.forecasts.observe(window(self._iteration, duration_s), seen)
            self._at_s, self._iteration, self._level = self._at_s + duration_s, self._iteration + 20, level
        return np.array(true), np.array(forecast)


def unexplained(run: Run, count: int) -> Reals:
    """Squared errors of the next forecasts over those of levels that stay, by worker."""
    true, forecast = run.windows(count)
    return np.asarray(((true - forecast) ** 2).sum(axis=0) / (true**2).sum(axis=0))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("every_s", "slow_s", "soon"), [(4.5, 1.5, 40), (6.5, 2.2, 60), (16.0, 3.0, 120)])
def test_work_that_comes_back_is_forecast(every_s: float, slow_s: float, soon: int, seed: int) -> None:
    run = Run(lambda at_s: np.array([recurring(at_s, every_s, slow_s), 1.0]), 2, seed)
    _, forecast = run.windows(soon)
    assert (forecast[:10] == 0).all(), "nothing can be known yet"
    true, forecast = run.windows(100)
    assert ((true - forecast)[:, 0] ** 2).sum() < 0.4 * (true[:, 0] ** 2).sum()
    assert (forecast[:, 1] == 0).all(), "the other worker never changes"


def test_a_slow_recurrence_is_forecast_after_a_few_periods() -> None:
    run = Run(lambda at_s: np.array([recurring(at_s, 45, 15)]), 1)
    run.windows(10 * 28)
    assert unexplained(run, 5 * 28)[0] < 0.5


def telegraph(rng: np.random.Generator) -> Callable[[float], Reals]:
    """Slow for 1.5 s after 3 s on average, or for 10 s after 30 s, at random."""
    ends_s = [np.cumsum(rng.exponential(np.tile(means, 2000))) for means in ((3, 1.5), (30, 10)) for _ in range(4)]
    return lambda at_s: np.array([SLOW ** (np.searchsorted(one, at_s) % 2) for one in ends_s], dtype=np.float64)


def noise(rng: np.random.Generator) -> Callable[[float], Reals]:
    return lambda at_s: np.exp(0.3 * rng.standard_normal(8))


def drift(rng: np.random.Generator) -> Callable[[float], Reals]:
    log_level = np.zeros(8)

    def level_at(at_s: float) -> Reals:
        log_level[:] = 0.97 * log_level + 0.1 * rng.standard_normal(8)
        return np.exp(log_level)

    return level_at


def steps(rng: np.random.Generator) -> Callable[[float], Reals]:
    """Twelve lasting changes."""
    at, to = np.sort(rng.uniform(0, 600, (12, 8)), axis=0), np.exp(rng.uniform(-0.5, 1.8, (13, 8)))
    return lambda at_s: np.array([to[(at[:, w] < at_s).sum(), w] for w in range(8)])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [telegraph, noise, drift, steps])
def test_what_changes_at_random_is_not_forecast(
    kind: Callable[[np.random.Generator], Callable[[float], Reals]], seed: int
) -> None:
    run = Run(kind(np.random.default_rng(seed)), 8, seed)
    _, forecast = run.windows(400)
    assert (forecast == 0).all()


def test_a_recurrence_that_ends_is_soon_forgotten() -> None:
    run = Run(lambda at_s: np.array([recurring(at_s) if at_s < 300 else 1.0]), 1)
    run.windows(int(300 / 1.6))
    _, forecast = run.windows(KEPT)
    assert (np.abs(forecast) > 0.3).sum() < KEPT / 3
    _, forecast = run.windows(KEPT)
    assert (forecast == 0).all()


def test_iterations_between_windows_count_as_time() -> None:
    """Plans take effect some iterations after a window, and windows with a stall are left out; numbers tell of both."""
    for dropped in ((5,), (0,) * 11 + (27,)):
        run = Run(lambda at_s: np.array([recurring(at_s)]), 1)
        run.dropped = itertools.cycle(dropped)
        run.windows(60)
        assert unexplained(run, 100)[0] < 0.5


def test_phases_are_in_seconds_whatever_the_length_of_windows() -> None:
    run = Run(lambda at_s: np.array([recurring(at_s, 12, 4)]), 1)
    run.windows(90)
    run.mean_s = 2.4
    assert unexplained(run, 60)[0] < 0.4


def test_candidates_follow_windows_that_become_much_longer() -> None:
    run = Run(lambda at_s: np.array([recurring(at_s, 31, 10)]), 1, mean_s=0.3)
    run.windows(50)  # half a period
    run.mean_s = 3.0
    run.windows(2 * KEPT)
    assert unexplained(run, 100)[0] < 0.4


def test_every_environment_is_by_itself_and_restarts_by_itself() -> None:
    """(environments, workers) equals row by row."""
    rng = np.random.default_rng(5)
    many, rows = Recurrence(3, 2), [Recurrence(2) for _ in range(3)]
    forecasts, iterations, at_s = 0, np.zeros(3, dtype=int), np.zeros(3)
    for step in range(160):
        if step == 80:
            many.restart(np.array([False, True, False]))
            rows[1], iterations[1] = Recurrence(2), 0
        durations_s = 1.6 * np.exp(0.1 * rng.standard_normal(3))
        levels = np.array([[recurring(at_s[0]), 1], [recurring(at_s[1], 6.5, 2.2), recurring(at_s[1])], [1, 1]])
        seen = [window(*one) for one in zip(iterations.tolist(), durations_s.tolist(), strict=True)]
        ahead = many.observe(stacked(seen), levels)
        for row, one, level, together in zip(rows, seen, levels, ahead, strict=True):
            np.testing.assert_allclose(together, row.observe(one, level), rtol=1e-5)
        iterations, at_s = iterations + 20, at_s + durations_s
        forecasts += int((ahead[:2] != 1).sum())
    assert forecasts > 100
    many.observe(stacked(seen), 2 * levels)
    for row, one, level in zip(rows, seen, 2 * levels, strict=True):
        row.observe(one, level)
    many.forget(np.array([[True, False], [False, True], [True, True]]))
    for row, who in zip(rows, ([True, False], [False, True], [True, True]), strict=True):
        row.forget(np.array(who))
    unknown = np.array([[1, 2 * levels[0, 1]], [2 * levels[1, 0], 1], [1, 1]])
    ahead = many.observe(stacked(seen), unknown)
    assert ahead[0, 0] == ahead[1, 1] == 1 and many._changes[0, 0] == many._changes[1, 1] == 0
    for row, one, level, together in zip(rows, seen, unknown, ahead, strict=True):
        np.testing.assert_allclose(together, row.observe(one, level), rtol=1e-5)
    many.restart(np.ones(3, dtype=bool))
    assert (many.observe(stacked([window(0, 1.6)] * 3), levels) == 1).all()


@pytest.mark.parametrize("duration_s", [np.nan, np.inf, -1.0, 0.0, 1e-300, 1e9])
def test_a_window_without_a_sensible_length_takes_no_time(duration_s: float) -> None:
    run = Run(lambda at_s: np.array([recurring(at_s)]), 1)
    run.windows(60)
    assert (run.forecasts.observe(window(run._iteration, duration_s), np.array([1.0])) > 0).all()
    run._iteration += 20
    assert unexplained(run, 60)[0] < 0.4
