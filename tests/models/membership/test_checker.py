"""The protocol of membership on a fake network: it holds in any order, and each of its rules matters."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.models.membership.checker import CASES, POINT_SETS, Case, tally, tally_points
from tests.models.membership.rules import RULES, Rule

SEEDS = range(10 if settings.get_current_profile_name() == "check" else 40)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_invariants_hold_under_faults_in_any_order(case: Case) -> None:
    assert tally(case, SEEDS).wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize("other", [0, *(pytest.param(number, marks=pytest.mark.long) for number in (1, 2, 3))])
@pytest.mark.parametrize("name", POINT_SETS)
def test_the_invariants_hold_with_a_fault_at_every_point_and_at_every_pair_of_points(name: str, other: int) -> None:
    result = tally_points(POINT_SETS[name], range(other, other + 1))
    assert result.wrong == {}
    assert result.counts["lost"] > 300


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_model_finds_what_goes_wrong_without_a_rule(rule: Rule) -> None:
    wrong = tally(Case(rule.broken(), rule.faults, rule.chance), range(1500), stop=True).wrong
    assert wrong != {}
    assert tally(Case(rule.job, rule.faults, rule.chance), range(min(wrong), min(wrong) + 1)).wrong == {}
