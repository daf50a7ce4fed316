"""From a closed window to the factor of the next plan."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from dynamix_ps.messages import Plan
from dynamix_ps.policy.base import View
from dynamix_ps.policy.rate.decay import decayed
from dynamix_ps.policy.rate.decider import RateDecider
from dynamix_ps.policy.rate.limits import STEPS
from tests.control_plane import run_under, view

NAN = math.nan


class Windows:
    """Windows of 50 iterations, one after the other; what is decided is in force in the next one."""

    def __init__(self, guard: float = 1.0) -> None:
        self.decider = RateDecider()
        self.guard = guard
        self.plan = Plan(0, (64, 64))
        self.number = 0
        self.view: View | None = None

    def close(self, step: float | None = None, **changes: Any) -> float:
        decided = self.plan.lr_factor * self.guard
        told = {"lr_decided": decided, "lr_guard": self.guard, "trained_ratio": NAN, "lr_ratio": 1.0} | changes
        records = run_under(self.plan, self.number, first_iteration=50 * self.number, iterations=50, **told)
        self.view = dataclasses.replace(view(self.plan, records), lr_steps=self.decider.observe(records))
        factor = self.decider.factor(self.view, step)
        if factor != self.plan.lr_factor:
            self.plan = Plan(self.plan.version + 1, self.plan.batch_sizes, factor)
        self.number += 1
        return factor


@pytest.mark.parametrize(
    ("trained", "script", "wanted"),
    [(0.0, 1.0, 1.0), (0.3, 1.0, 0.7), (0.95, 1.0, 0.125), (0.3, 0.98, 1.0), (NAN, 1.0, 1.0), (0.3, NAN, 1.0)],
)
def test_linear_decay_where_the_end_is_known_and_the_script_has_none(
    trained: float, script: float, wanted: float
) -> None:
    assert decayed(trained, script) == pytest.approx(wanted)


def test_the_rule_decays_in_steps_to_an_eighth_at_the_end() -> None:
    windows = Windows()
    factors = [windows.close(trained_ratio=(number + 1) / 40) for number in range(40)]
    assert factors == sorted(factors, reverse=True)
    assert set(factors) == {2 ** (-half / 2) for half in range(7)}
    for number, factor in enumerate(factors):
        assert abs(math.log2(factor / max(1 - (number + 1) / 40, 0.125))) <= 0.26, "the nearest half power of two"


def test_the_scripts_own_schedule_gets_the_whole_rate_back() -> None:
    windows = Windows()
    for number in range(20):
        windows.close(trained_ratio=(number + 1) / 40)
    assert windows.plan.lr_factor == 0.5
    back = [windows.close(trained_ratio=0.5, lr_ratio=0.1) for _ in range(3)]
    assert back[-1] == 1.0


def test_the_policys_step_counts_as_far_as_it_is_allowed() -> None:
    windows = Windows()
    assert [windows.close(step=2.0) for _ in range(4)] == [2.0, 2.0, 4.0, 4.0], "twice in a hundred iterations"
    assert windows.close(step=0.6) == 4 * math.sqrt(0.5)
    assert windows.close(step=NAN) == windows.close(step=1.0) == windows.plan.lr_factor


def test_a_policy_sees_which_steps_it_may_make() -> None:
    windows = Windows()
    windows.close(step=2.0)
    assert windows.view is not None and windows.view.lr_steps == STEPS
    windows.close()
    assert windows.view.lr_steps == STEPS[:3]


def test_what_the_guard_has_left_is_part_of_the_limits_and_not_of_the_plan() -> None:
    windows = Windows(guard=0.25)
    assert windows.close(step=0.5) == 0.5
    assert windows.close(step=0.5) == 0.5, "an eighth in all"
    assert [windows.close(step=2.0) for _ in range(30)][-1] == 8.0, "no plan has more, though it is 2 in all"


def test_a_window_that_is_not_clean_or_knows_no_rate_keeps_the_factor() -> None:
    windows = Windows()
    assert windows.close(step=0.5, flagged=True) == 1.0
    assert windows.close(step=0.5, lr_decided=NAN) == 1.0
    assert windows.close(step=0.5) == 0.5
