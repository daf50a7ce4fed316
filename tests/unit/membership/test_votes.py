"""What sums decide about members changes the plans with the first iteration that is not prepared."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest

from dynamix_ps.membership.messages import Process
from dynamix_ps.messages import Plan
from worker_hooks.membership.votes import MembershipVotes
from worker_hooks.planning.plan_switch import PlanSwitch

NEWCOMER = Process("worker", 3, "b")


def sizes(switch: PlanSwitch, iteration: int) -> tuple[int, ...]:
    return switch.plan_at(iteration).batch_sizes


def votes(lag: int = 0, offered: dict[int, Process] | None = None) -> tuple[MembershipVotes[Any], PlanSwitch]:
    """Of three workers and an empty slot. Its member is a `Mock`."""
    switch = PlanSwitch(Plan(0, (4, 4, 4, 0)), lag, ((1, 64),) * 4, later=(3,))
    return MembershipVotes(Mock(**{"offered.return_value": offered or {}}), switch, least=2), switch


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
    one, switch = votes(1, {1: Process("worker", 0, "b")})
    one.lose(9, [0])
    assert sizes(switch, 11) == (0, 6, 6, 0)
    one.enter(9, 1)
    one.lose(10, [0, 1])
    assert sizes(switch, 12) == (6, 0, 6, 0)


def test_who_enters_in_the_place_of_one_that_has_left_stays_and_takes_over_what_was_decided() -> None:
    offered = {1: Process("worker", 1, "b"), 2: NEWCOMER}
    one, _ = votes(offered=offered)
    one.leave(10, 10, (0, 1, 2), [1])
    one.leave(11, 11, (0, 1, 2), [])
    one.enter(12, 1)
    other, switch = votes(offered=offered)
    other.take_over(json.loads(json.dumps(one.packed())))
    other.enter(13, 2)
    assert [one.slot for one in other.entries.due(14)] == [1, 3]
    assert sizes(switch, 14) == (3, 3, 3, 3)
    assert other.leave(14, 14, (0, 1, 2, 3), []) == ([0, 1, 2, 3], [])


@pytest.mark.parametrize("follows", [False, True])
def test_who_follows_decides_as_the_others_by_what_they_know(follows: bool) -> None:
    """Its own member knows other entries, and learns who is there when it enters."""
    member = Mock(**{"offered.return_value": {} if follows else {1: NEWCOMER}})
    switch = PlanSwitch(Plan(0, (4, 4, 4, 0)), 0, ((1, 64),) * 4, later=(3,))
    one: MembershipVotes[Any] = MembershipVotes(member, switch, least=1, follows=follows)
    one.told = {1: NEWCOMER} if follows else {}
    one.leave(9, 9, (0, 1, 2), [1])
    one.leave(10, 10, (0, 1, 2), [1])
    assert member.others_left.called is not follows
    one.enter(10, 1)
    assert sizes(switch, 11) == (4, 0, 4, 4)
