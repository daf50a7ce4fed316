"""The opening of a report: what is compared, what counts as clear, and the two sentences."""

from __future__ import annotations

from benchmarks.report.comparison import comparisons
from benchmarks.report.headline import NOTHING, headline
from benchmarks.suite.results import CellResult
from benchmarks.suite.statistics import races
from tests.unit.benchmarks.suite.made_up_cells import made_up


def cells(contender: str, times_s: tuple[float, ...], scenario: str = "h-level-4") -> list[CellResult]:
    return [made_up(contender, time_s, seed=seed, scenario=scenario) for seed, time_s in enumerate(times_s, start=1)]


def opening(results: list[CellResult]) -> str:
    all_races = races(results)
    return headline(all_races, comparisons(all_races))


CLEAR = cells("ppo", (20, 21, 22)) + cells("static-64", (40, 41, 42)) + cells("goodput", (19, 22, 23))
NOISY = (
    cells("ppo", (20, 30, 40), "spot") + cells("static-64", (21, 29, 39), "spot") + cells("pid", (10, 11, 12), "spot")
)


def test_the_sentences_tell_clear_differences_from_noise() -> None:
    text = opening(CLEAR + NOISY)
    first, _, second = text.partition("\n")[0].partition(" Against ")
    assert first.startswith("`ppo` reaches 90 % test accuracy in **0.7")
    assert first.endswith("over 2 scenarios: clearly faster in 1 of 2, within the noise in 1, clearly slower in none.")
    assert second.startswith("its strongest rivals, by time to the target, it takes **2.63 [")
    assert "of `pid` (clearly faster in 0 of 1, within the noise in 0, clearly slower in 1)" in second
    assert "of `goodput` (clearly faster in 0 of 1, within the noise in 1, clearly slower in none)" in second
    assert "| `pid` | 2.63 [" in text and "| 0 of 1 | 0 of 1 | 1 of 1 | spot (2.63) | 3 |" in text


def test_a_single_seed_is_never_clear() -> None:
    text = opening(cells("ppo", (20,)) + cells("static-64", (40,)))
    assert "**0.50** of the time of tuned `static` over h-level-4: faster in 1 of 1, from fewer than 3 seeds" in text
    assert "clearly faster in 1" not in text and "| n/a | n/a | n/a |" in text


def test_without_ours_the_contender_that_ranks_best_is_compared() -> None:
    text = opening(cells("static-64", (40, 41, 42)) + cells("pid", (20, 21, 22)) + cells("lbb", (30, 31, 32)))
    assert text.startswith("`pid` reaches") and "| `lbb` |" in text


def test_a_rival_with_fewer_seeds_comes_last() -> None:
    lucky = cells("lbb", (10,))
    assert [one.rival for one in comparisons(races(CLEAR + lucky))] == ["goodput", "static", "lbb"]


def test_nothing_to_compare() -> None:
    assert opening(cells("ppo", (20, 21, 22))) == NOTHING
    assert opening([]) == NOTHING
    apart = [*cells("ppo", (20,)), made_up("pid", 20, seed=2)]
    assert opening(apart) == NOTHING
