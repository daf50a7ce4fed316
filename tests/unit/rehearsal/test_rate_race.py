"""A race of rates: which are tried, which wins, and the sentence about it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.rehearsal.rate_race import LIMIT, STEP, FoundRate, RateRace

octaves = st.floats(-LIMIT + 1.01, LIMIT - 1.01)  # beyond, the best is at an end


def run(loss_at: dict[int, float]) -> RateRace:
    race = RateRace()
    while missing := race.missing():
        for octave in missing:
            race.add(octave, loss_at[octave])
    return race


def losses(best: float, broken_from: float = math.inf) -> dict[int, float]:
    """A parabola around `best`."""
    tried = range(-LIMIT, LIMIT + 1, STEP)
    return {one: math.nan if one >= broken_from else 2.0 + 0.1 * (one - best) ** 2 for one in tried}


@given(octaves)
def test_the_minimum_of_a_parabola_is_found_wherever_it_lies(best: float) -> None:
    found = run(losses(best)).found()
    assert found is not None and found.octaves == pytest.approx(best, abs=1e-9)
    assert found.is_right == (abs(best) < 1)


def test_three_rates_do_where_the_one_between_is_best() -> None:
    assert sorted(run(losses(0.3)).losses) == [-STEP, 0, STEP]
    assert sorted(run(losses(3.2)).losses) == [-STEP, 0, STEP, 2 * STEP, 3 * STEP]


@given(octaves, st.integers(-LIMIT, LIMIT))
def test_a_broken_rate_never_wins(best: float, broken_from: int) -> None:
    race = run(losses(best, broken_from))
    found = race.found()
    if all(map(math.isinf, race.losses.values())):
        assert found is None
    else:
        assert found is not None and found.octaves < broken_from


def test_the_suggestion_keeps_away_from_a_broken_rate_as_from_one_that_is_far_worse() -> None:
    beside = {-STEP: 2.3, 0: 2.0}
    broken, far_worse = (RateRace({**beside, STEP: loss}).found() for loss in (math.inf, 1e28))
    assert broken == FoundRate(-STEP / 2) and far_worse is not None and far_worse.octaves == pytest.approx(-STEP / 2)


def test_a_best_rate_at_the_end_may_have_a_better_one_beyond() -> None:
    found = run(losses(LIMIT + 3.0)).found()
    assert found == FoundRate(LIMIT, at_least=True) and not found.is_right


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (FoundRate(-2.0), "your rate of 0.044 is about 4 times too high; 0.011 suggested"),
        (FoundRate(3.0), "your rate of 0.044 is about 8 times too low; 0.35 suggested"),
        (FoundRate(0.9), "your rate of 0.044 is about right"),
        (FoundRate(-LIMIT, at_least=True), "your rate of 0.044 is at least 64 times too high; 0.00069 suggested"),
    ],
)
def test_the_sentence(found: FoundRate, sentence: str) -> None:
    assert found.sentence(0.044) == sentence
