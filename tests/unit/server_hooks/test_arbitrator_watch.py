"""When and how often an arbitrator that has ended is restarted."""

from __future__ import annotations

from server_hooks.arbitrator_watch import RestartBudget


def test_delays_double_and_the_budget_ends() -> None:
    budget = RestartBudget(restarts=4, window_s=60, first_delay_s=0.5)
    assert [budget.next_delay_s(now) for now in (0.0, 1.0, 2.0, 3.0, 4.0)] == [0.5, 1.0, 2.0, 4.0, None]


def test_what_lies_long_ago_is_forgotten() -> None:
    budget = RestartBudget(restarts=2, window_s=60, first_delay_s=0.5)
    assert [budget.next_delay_s(now) for now in (0.0, 30.0)] == [0.5, 1.0]
    assert budget.next_delay_s(59.9) is None
    assert budget.next_delay_s(60.0) == 1.0
    assert budget.next_delay_s(200.0) == 0.5
