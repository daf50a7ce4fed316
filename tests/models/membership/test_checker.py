"""The classes of live workers on a fake network: they hold in any order, and the model sees what would break them."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.models.membership.broken import Broken, first_wrong, read_breaks
from tests.models.membership.checker import CASES, tally

IS_CHECK = settings.get_current_profile_name() == "check"


@pytest.mark.parametrize("case", CASES)
def test_the_invariants_hold_under_faults_in_any_order(case: str) -> None:
    assert tally(CASES[case], range(20)).wrong == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_the_invariants_hold_in_a_thousand_schedules(case: str) -> None:
    assert tally(CASES[case], range(20, 1000)).wrong == {}


@pytest.mark.slow
@pytest.mark.parametrize("one", read_breaks(), ids=lambda one: one.name)
def test_the_model_finds_what_goes_wrong_with_a_break(one: Broken) -> None:
    assert first_wrong(one) is not None
