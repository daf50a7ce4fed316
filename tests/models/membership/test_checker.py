"""The classes of live workers on a fake network: they hold in any order, and the model sees what would break them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings

from tests.models.membership.broken import Broken, first_wrong, read_breaks
from tests.models.membership.checker import CASES, tally
from tests.models.membership.points import POINT_SETS

SEEDS = range(10 if settings.get_current_profile_name() == "check" else 1000)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_the_invariants_hold_under_faults_in_any_order(case: str) -> None:
    assert tally(CASES[case], SEEDS).wrong == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("other", [0, *(pytest.param(number, marks=pytest.mark.long) for number in (1, 2, 3))])
@pytest.mark.parametrize("name", POINT_SETS)
def test_the_invariants_hold_with_a_fault_at_every_point_and_at_every_pair_of_points(name: str, other: int) -> None:
    points_of = POINT_SETS[name]
    happened: Counter[str] = Counter()
    for number, points in enumerate((*points_of.singles(), *points_of.pairs())):
        happened.update(points_of.run(points, other + 4 * number))
    assert happened["lost"] > 500 and happened["behind"] > 50 and happened["entered"] > 100, happened


def test_there_are_breaks_of_rules_of_servers_and_of_rings() -> None:
    breaks = read_breaks()
    over_servers = [one for one in breaks if not one.cases[0].startswith("ring")]
    assert sum(one.is_rule for one in breaks) >= 30
    assert min(len(over_servers), len(breaks) - len(over_servers)) >= 58


@pytest.mark.slow
@pytest.mark.parametrize("one", read_breaks(), ids=lambda one: one.name)
def test_the_model_finds_what_goes_wrong_with_a_break(one: Broken) -> None:
    assert first_wrong(one) is not None
