"""What sums decide about members changes the plans with the first iteration that is not prepared."""

from __future__ import annotations

import json

import pytest

from dynamix_ps.membership.messages import Process
from dynamix_ps.messages import Plan
from worker_hooks.membership.votes import MembershipVotes
from worker_hooks.planning.plan_switch import PlanSwitch

NEWCOMER = Process("worker", 3, "b")


def sizes(switch: PlanSwitch, iteration: int) -> tuple[int, ...]:
    return switch.plan_at(iteration).batch_sizes


def votes(lag: int = 0) -> tuple[MembershipVotes, PlanSwitch]:
    """Of three workers and an empty slot."""
    switch = PlanSwitch(Plan(0, (4, 4, 4, 0)), lag, ((1, 64),) * 4, later=(3,))
    return MembershipVotes(switch, least=2), switch


@pytest.mark.parametrize("lag", [0, 2])
def test_who_leaves_has_samples_while_they_are_prepared_and_then_one_sum_without(lag: int) -> None:
    one, switch = votes(lag)
    present, last = (0, 1, 2), 11 + lag
    assert one.leave(10, 10, present, [1]) == ([0, 2], [])
    for iteration in range(11, last):
        assert one.leave(iteration, iteration, present, [1]).gone == []
        assert sizes(switch, iteration) == (4, 4, 4, 0)
    assert sizes(switch, last) == (6, 0, 6, 0)
    assert one.leave(last, last, present, [1]) == ([0, 2], [1])


def test_who_is_missing_has_no_samples_unless_another_one_is_awaited_there() -> None:
    one, switch = votes(lag=1)
    one.lose(9, [0])
    assert sizes(switch, 11) == (0, 6, 6, 0)
    one.enter(9, 1, {1: Process("worker", 0, "b")})
    one.lose(10, [0, 1])
    assert sizes(switch, 12) == (6, 0, 6, 0)


def test_who_enters_in_the_place_of_one_that_has_left_stays_and_takes_over_what_was_decided() -> None:
    one, _ = votes()
    one.leave(10, 10, (0, 1, 2), [1])
    one.leave(11, 11, (0, 1, 2), [])
    one.enter(12, 1, {1: Process("worker", 1, "b"), 2: NEWCOMER})
    other, switch = votes()
    other.take_over(json.loads(json.dumps(one.packed())))
    other.enter(13, 2, {1: Process("worker", 1, "b"), 2: NEWCOMER})
    assert [one.slot for one in other.entries.due(14)] == [1, 3]
    assert sizes(switch, 14) == (3, 3, 3, 3)
    assert other.leave(14, 14, (0, 1, 2, 3), []) == ([0, 1, 2, 3], [])
