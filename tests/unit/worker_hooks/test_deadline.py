"""The deadline of an iteration: from when workers came to the sums, and none while that is not known."""

from __future__ import annotations

import math

import pytest

from worker_hooks.planning.deadline import EVERY, LATELY, LOOKED_AT, Deadline

FIRST = EVERY + 2  # sums after which a plan has a deadline


def seen(deadline, came_s, times, plan="plan"):
    for _ in range(times):
        deadline.see(plan, came_s)
    return deadline.seconds


def test_it_is_a_factor_on_the_usual_time_of_the_slowest_worker():
    deadline = Deadline(1.15)
    assert seen(deadline, (1.0, 2.0, 1.5), FIRST) == pytest.approx(2.3)


def test_the_first_iterations_of_a_plan_have_none():
    deadline = Deadline(1.15)
    assert seen(deadline, (1.0, 2.0), FIRST - 1) == math.inf
    seen(deadline, (1.0, 2.0), 1)
    assert seen(deadline, (1.0, 1.0), FIRST - 1, "next plan") == math.inf
    assert seen(deadline, (1.0, 1.0), 1, "next plan") == pytest.approx(1.15)


def test_a_worker_that_is_late_now_and_then_does_not_change_it():
    deadline = Deadline(1.2)
    seen(deadline, (1.0, 1.0), FIRST)
    for _ in range(LOOKED_AT):
        seen(deadline, (1.0, 1.0), 2)
        assert seen(deadline, (5.0, 1.0), 1) == pytest.approx(1.2)


def test_the_deadline_follows_a_worker_that_stays_slow():
    deadline = Deadline(1.2)
    seen(deadline, (1.0, 1.0), FIRST)
    assert seen(deadline, (3.0, 1.0), LOOKED_AT) == pytest.approx(3.6)


def test_a_worker_is_late_lately_for_a_while():
    deadline = Deadline(1.2)
    deadline.computed(99.0)
    assert not deadline.late_lately, "there was no deadline"
    seen(deadline, (1.0, 1.0), FIRST)
    deadline.computed(1.1)
    assert not deadline.late_lately
    deadline.computed(1.3)
    deadline.computed(1.0)
    deadline.computed(1.3)
    assert not deadline.late_lately, "by chance"
    deadline.computed(1.3)
    assert deadline.late_lately
    for _ in range(LATELY - 1):
        deadline.computed(1.0)
    assert deadline.late_lately
    deadline.computed(1.0)
    assert not deadline.late_lately
