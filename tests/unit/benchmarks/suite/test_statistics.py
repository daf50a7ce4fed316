"""Statistics of a grid, on cells with a known answer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest
from scipy.stats import t as student

from benchmarks.suite.results import CellResult, CurvePoint, PlanPoint
from benchmarks.suite.statistics import (
    STATIC,
    Race,
    contenders_of,
    difference,
    final_value,
    global_batch,
    global_batch_until,
    improvement,
    races,
    relative_time,
    samples_per_s,
    samples_to,
    value_at_samples,
    value_at_time,
    with_static,
)
from tests.unit.benchmarks.suite.made_up_cells import HIGHEST, LIMIT_S, TARGET, TRAIN_S, made_up

MISSED = 1000.0


def seeds(contender: str, arrivals_s: Sequence[float], scenario: str = "h-level-4") -> list[CellResult]:
    return [made_up(contender, time_s, seed=seed, scenario=scenario) for seed, time_s in enumerate(arrivals_s, 1)]


def only(cells: Sequence[CellResult]) -> Race:
    (race,) = races(cells)
    return race


class TestTimes:
    def test_the_first_evaluation_that_is_good_enough_counts(self) -> None:
        race = only(seeds("ppo", [20, 22]))
        assert list(race.counted_s("ppo", TARGET)) == [20, 22]
        assert list(race.counted_s("ppo", TARGET / 2)) == [10, 11]
        assert race.time_s("ppo", TARGET).value == pytest.approx(math.sqrt(20 * 22))
        assert race.arrived("ppo") == 2

    def test_who_never_arrives_counts_with_the_limit(self) -> None:
        race = only([made_up("ppo", 20), made_up("ppo", MISSED, seed=2, ended="timed out")])
        assert list(race.counted_s("ppo", TARGET)) == [20, LIMIT_S]
        assert race.arrived("ppo") == 1

    def test_or_with_the_longest_arrival_if_that_is_later(self) -> None:
        """Also one of a fixed size that is not the best."""
        late = made_up("static-32", 140, train_s=150)
        race = only([made_up("ppo", MISSED), made_up("static-64", 30), late])
        assert list(race.counted_s("ppo", TARGET)) == [140]

    def test_ranking(self) -> None:
        assert only([made_up("a", 30), made_up("b", 20), made_up("c", MISSED)]).ranking() == ["b", "a", "c"]

    def test_a_lucky_seed_is_no_best(self) -> None:
        race = only(seeds("a", [30, 30, 30]) + seeds("b", [20, 20, 20, 20]) + seeds("lucky", [10, 10]))
        assert race.ranking() == ["b", "a", "lucky"]
        assert race.first_arrival()[0] == pytest.approx(20)

    def test_where_nobody_has_many_seeds_all_are_ranked_alike(self) -> None:
        assert only(seeds("a", [30, 30]) + seeds("b", [20, 20])).ranking() == ["b", "a"]


class TestStatic:
    def test_the_best_size_is_static_and_the_others_are_no_contenders(self) -> None:
        race = only(seeds("static-32", [40, 40]) + seeds("static-64", [30, 32]) + seeds("ppo", [20, 20]))
        assert race.tuned == "static-64"
        assert set(race.entries) == {STATIC, "ppo"}
        assert race.time_s(STATIC, TARGET).value == pytest.approx(math.sqrt(30 * 32))
        assert race.size_s("static-32", TARGET) == pytest.approx(40)

    def test_a_size_with_another_wire_is_a_contender_of_its_own(self) -> None:
        race = only(seeds("static-64", [30, 30]) + seeds("static-64-wire-auto", [20, 20]))
        assert race.tuned == "static-64"
        assert set(race.entries) == {STATIC, "static-64-wire-auto"}

    def test_arriving_always_is_better_than_arriving_early_once(self) -> None:
        race = only(seeds("static-32", [49, 49, 49]) + seeds("static-64", [1, 1, MISSED]))
        assert race.size_s("static-64", TARGET) < race.size_s("static-32", TARGET)
        assert race.tuned == "static-32"

    def test_a_size_of_which_seeds_are_missing_is_not_the_best(self) -> None:
        assert only(seeds("static-32", [40, 40]) + seeds("static-64", [30])).tuned == "static-32"

    def test_where_none_arrives_the_one_that_comes_farther_sooner_is_the_best(self) -> None:
        race = only(seeds("static-32", [80]) + seeds("static-64", [60]) + seeds("static-128", [70]))
        assert race.arrived(STATIC) == 0
        assert race.tuned == "static-64"

    def test_every_race_has_its_own(self) -> None:
        cells = [made_up(f"static-{size}", time_s) for size, time_s in ((32, 40), (64, 30))]
        cells += [made_up(f"static-{size}", time_s, scenario="spot") for size, time_s in ((32, 20), (64, 30))]
        assert [(race.scenario, race.tuned) for race in races(cells)] == [
            ("h-level-4", "static-64"),
            ("spot", "static-32"),
        ]

    def test_a_race_without_fixed_sizes(self) -> None:
        race = only([made_up("ppo", 20), made_up("pid", 20)])
        assert race.tuned == "" and STATIC not in race.entries
        assert with_static([race]) == []


class TestRelativeTime:
    def test_is_the_geometric_mean_over_pairs(self) -> None:
        """What all runs of a seed share takes no part in it."""
        race = only(seeds("ppo", [20, 30, 40]) + seeds("pid", [10, 15, 20]) + seeds("lbb", [20, 30, 20]))
        found, other = relative_time([race], "ppo", "pid"), relative_time([race], "ppo", "lbb")
        assert found is not None and other is not None
        assert (found.low, found.value, found.high) == pytest.approx((2, 2, 2))
        middle, reach = math.log(2) / 3, student.ppf(0.975, 2) * math.log(2) / 3
        assert (other.value, other.high) == pytest.approx((math.exp(middle), math.exp(middle + reach)))

    def test_seeds_are_the_unit_also_over_several_races(self) -> None:
        """Two races with the same luck say no more than one."""
        ours, theirs = [10, 20, 25], [20, 30, 70]
        one = seeds("ppo", ours) + seeds("pid", theirs)
        two = one + seeds("ppo", ours, "spot") + seeds("pid", theirs, "spot")
        assert relative_time(races(two), "ppo", "pid") == relative_time(races(one), "ppo", "pid")

    def test_over_races_it_is_the_geometric_mean(self) -> None:
        """Twice as fast here and half as fast there is equal, however long the races are."""
        among = races(
            seeds("ppo", [10, 10])
            + seeds("pid", [20, 20])
            + seeds("ppo", [40, 40], "spot")
            + seeds("pid", [20, 20], "spot")
        )
        found = relative_time(among, "ppo", "pid")
        assert found is not None and found.value == pytest.approx(1.0)

    def test_only_seeds_that_both_ran_count(self) -> None:
        race = only(seeds("ppo", [10, 10, 40]) + seeds("pid", [20, 20]))
        found = relative_time([race], "ppo", "pid")
        assert found is not None and found.value == pytest.approx(0.5)

    def test_every_race_counts_with_the_seeds_that_it_has(self) -> None:
        cells = seeds("ppo", [10, 10, 40]) + seeds("pid", [20, 20, 20])
        among = races(cells + [made_up(name, 10, scenario="spot", seed=2) for name in ("ppo", "pid")])
        found, won = relative_time(among, "ppo", "pid"), improvement(among, "ppo", "pid")
        assert found is not None and found.value == pytest.approx(2 ** (-1 / 6))
        assert won == pytest.approx((2 / 3 + 1 / 2) / 2)
        assert relative_time(races([*cells, made_up("ppo", 10, scenario="spot")]), "ppo", "pid") is None

    def test_no_interval_where_a_race_has_fewer_than_three_seeds(self) -> None:
        three = seeds("ppo", [10, 20, 20]) + seeds("pid", [40, 20, 40])
        two = seeds("ppo", [10, 10], "spot") + seeds("pid", [20, 20], "spot")
        for among, has_one in ((three, True), (three + two, False)):
            found = relative_time(races(among), "ppo", "pid")
            assert found is not None and found.value == pytest.approx(0.5)
            assert (found.low < found.value < found.high) is has_one
            assert (found.low == found.high) is not has_one

    def test_nothing_to_compare(self) -> None:
        race = only([made_up("ppo", 10, seed=1), made_up("pid", 10, seed=2)])
        assert relative_time([race], "ppo", "pid") is None
        assert relative_time([race], "ppo", "goodput") is None
        assert relative_time([], "ppo", "pid") is None

    def test_probability_of_improvement(self) -> None:
        race = only(seeds("ppo", [10, 30]) + seeds("pid", [20, 20]))
        assert improvement([race], "ppo", "pid") == pytest.approx(0.5)

    def test_a_figure_does_not_depend_on_who_else_took_part(self) -> None:
        cells = seeds("ppo", [10, 20, 25]) + seeds("pid", [20, 30, 40])
        alone, among = only(cells), only(cells + seeds("lbb", [11, 12, 13]))
        assert relative_time([alone], "ppo", "pid") == relative_time([among], "ppo", "pid")


class TestFigures:
    def test_the_final_accuracy_is_that_after_the_same_samples_for_all(self) -> None:
        assert final_value(made_up("ppo", 45, epochs=3)) == pytest.approx(TARGET * 30 / 45)
        assert final_value(made_up("ppo", 45, epochs=5)) == HIGHEST

    def test_who_was_cut_off_has_no_accuracy_after_samples_it_never_saw(self) -> None:
        late = made_up("static-64", 45, epochs=8, ended="timed out")
        assert final_value(late) is None
        assert value_at_samples(late, 50_000) == HIGHEST
        assert value_at_samples(late, 50_001) is None
        race = only([made_up("ppo", 20, epochs=5), late])
        assert difference(race, "ppo", STATIC, final_value) is None
        beyond = made_up("static-64", 45, epochs=4, ended="timed out")
        assert final_value(beyond) == pytest.approx(TARGET * 40 / 45)

    def test_who_diverged_never_arrives(self) -> None:
        race = only([made_up("ppo", 20), made_up("ppo", MISSED, seed=2, ended="diverged")])
        assert list(race.counted_s("ppo", TARGET)) == [20, LIMIT_S]

    def test_of_one_cell(self) -> None:
        cell = made_up("ppo", 20)
        assert final_value(cell) == HIGHEST
        assert samples_per_s(cell) == 1000
        assert samples_per_s(dataclasses.replace(cell, train_s=2 * TRAIN_S)) == 1000, "the evaluations count"
        assert samples_per_s(made_up("ppo", 20, ended="failed")) is None
        assert global_batch(cell) == 100
        assert global_batch(dataclasses.replace(cell, samples=0, iterations=0)) is None
        assert samples_to(cell, TARGET) == 20_000
        assert samples_to(made_up("ppo", MISSED), TARGET) is None

    @pytest.mark.parametrize(
        ("accuracies", "arrival_s"),
        [
            ([0.80, 0.82, 0.95, 0.82, 0.84, 0.88, 0.92, 0.94], 6.6),  # a lucky evaluation decides nothing
            ([0.80, 0.82, 0.84, 0.86, 0.88, 0.90, 0.92, 0.94], 6.0),  # on a line it is the line
            ([0.91, 0.92], 1.0),
            ([0.95], 1.0),
            ([0.80, 0.95], None),
        ],
    )
    def test_the_target_is_reached_by_the_mean_of_neighbours(
        self, accuracies: list[float], arrival_s: float | None
    ) -> None:
        curve = [CurvePoint(float(t), 1000 * t, 0.0, one, 0.0) for t, one in enumerate(accuracies, start=1)]
        cell = dataclasses.replace(made_up("ppo", 20), curve=(*curve, dataclasses.replace(curve[-1], time_s=99.0)))
        expected = None if arrival_s is None else pytest.approx((arrival_s, 1000 * arrival_s))
        assert cell.arrival(0.90) == expected

    def test_bits_per_byte_arrive_from_above(self) -> None:
        """Its loss is 1 / t, so its bits per byte are 1 / (t ln 2), and slightly more as means of three."""
        cell = dataclasses.replace(made_up("ppo", 20), metric="bpb", thresholds=(0.2, 0.1))
        reached_s = cell.time_to_s(0.1)
        assert reached_s is not None and 14.4 < reached_s < 14.6
        assert cell.time_to_s(0.01) is None
        assert final_value(cell) == pytest.approx(1 / (TRAIN_S * math.log(2)))
        assert value_at_time(cell, 20.0) == pytest.approx(1 / (20 * math.log(2)))

    def test_an_infinite_loss_is_far_from_every_target(self) -> None:
        cell = dataclasses.replace(made_up("ppo", 20), metric="loss", thresholds=(0.2, 0.1))
        lost = tuple(dataclasses.replace(point, loss=None) for point in cell.curve[:5])
        assert dataclasses.replace(cell, curve=lost).time_to_s(100.0) is None
        later = dataclasses.replace(cell, curve=lost + cell.curve[5:])
        assert later.time_to_s(1.0) == 7.0, "the mean of three is finite there for the first time"

    def test_accuracy_on_equal_terms(self) -> None:
        cell = made_up("ppo", 20, samples_per_s=2000)
        assert value_at_time(cell, 10.5) == pytest.approx(TARGET * 10.5 / 20)
        assert value_at_samples(cell, 21_000) == pytest.approx(TARGET * 10.5 / 20)
        assert value_at_time(cell, 1e6) == HIGHEST  # it keeps its last one
        assert value_at_time(cell, 0.5) is None  # nobody knows

    def test_the_global_batch_is_that_until_the_target_weighted_by_time(self) -> None:
        plans = ((0.0, (64, 64)), (5.0, (100, 156)), (25.0, (500, 500)))
        cell = dataclasses.replace(made_up("ppo", 20), sizes=tuple(PlanPoint(*plan) for plan in plans))
        assert global_batch_until(cell, TARGET) == (5 * 128 + 15 * 256) / 20
        assert global_batch_until(cell, TARGET / 5) == 128
        assert global_batch_until(cell, 0.995) is None
        late = dataclasses.replace(cell, sizes=(PlanPoint(25.0, (500, 500)),))
        assert global_batch_until(late, TARGET) is None
        assert global_batch_until(dataclasses.replace(cell, sizes=()), TARGET) is None

    def test_what_failed_counts_nowhere(self) -> None:
        cells = [made_up("ppo", 20, seed=1), made_up("ppo", 20, seed=2, ended="failed")]
        race = only([*cells, made_up("lbb", 10, ended="failed"), *seeds("pid", [10, 1000])])
        assert set(race.entries) == {"ppo", "pid"}
        assert list(race.counted_s("ppo", TARGET)) == [20]
        found = relative_time([race], "ppo", "pid")
        assert found is not None and found.value == 2

    def test_what_no_seed_knows(self) -> None:
        assert only([made_up("ppo", 20)]).over_seeds("ppo", lambda cell: cell.decision_p99_ms) is None

    def test_difference_of_accuracies(self) -> None:
        race = only(seeds("ppo", [20, 20]) + seeds("static-64", [100, 100]))
        found = difference(race, "ppo", STATIC, final_value)
        assert found is not None and found.value == pytest.approx(HIGHEST - TARGET / 2)

    def test_the_first_arrival_gives_the_terms(self) -> None:
        cells = [made_up("ppo", 20, samples_per_s=3000), made_up("pid", 30, samples_per_s=1000), made_up("lbb", MISSED)]
        assert only(cells).first_arrival() == pytest.approx((20, 60_000))
        nobody = [made_up("ppo", MISSED, samples_per_s=3000), made_up("pid", MISSED, samples_per_s=1000)]
        assert only(nobody).first_arrival() == pytest.approx((LIMIT_S, 50_000))

    def test_contenders_come_in_the_order_of_the_catalogue(self) -> None:
        names = ("stranger", "ppo", "pid", "static-64")
        assert contenders_of(races([made_up(name, 20) for name in names])) == [STATIC, "pid", "ppo", "stranger"]
