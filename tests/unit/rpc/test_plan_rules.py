from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.messages import LARGEST_VERSION, Plan
from dynamix_ps.rpc.plan_rules import LARGEST_STEP, wrong_plan, wrong_version
from worker_hooks.planning.plan_switch import VERSION_BITS, PlanSwitch, agreed_version, version_bits

BOUNDS = ((0, 64), (32, 1024))
versions = st.one_of(st.integers(-3, 3), st.integers(), st.integers(LARGEST_VERSION - 2, LARGEST_VERSION + 2))
sizes = st.lists(st.one_of(st.integers(-1, 65), st.integers()), max_size=3).map(tuple)
plans = st.builds(Plan, versions, sizes)


@given(plans, st.integers(0, LARGEST_VERSION))
def test_every_plan_that_is_taken_can_be_voted_for_and_trained_with(plan: Plan, held: int) -> None:
    if wrong_plan(plan, Plan(held, (1, 32)), BOUNDS):
        return
    switch = PlanSwitch(Plan(held, (1, 32)))
    voted = switch.vote(plan).version
    assert agreed_version([float(2 * bit) for bit in version_bits(voted)], 2) == voted
    assert len(plan.batch_sizes) == 2 and plan.global_batch > 0
    assert all(low <= size <= high for size, (low, high) in zip(plan.batch_sizes, BOUNDS, strict=True))


def test_the_next_plans_are_taken_and_those_far_ahead_are_not() -> None:
    held = Plan(5, (1, 32))
    for version in (6, 5 + LARGEST_STEP):
        assert wrong_plan(Plan(version, (64, 1024)), held, BOUNDS) == ""
    assert "expected 0..65541; the newest one known is 5" in wrong_plan(Plan(6 + LARGEST_STEP, (1, 32)), held, BOUNDS)
    assert "expected 0..16777215" in wrong_version(LARGEST_VERSION + 1, LARGEST_VERSION, 1)
    assert 1 << VERSION_BITS == LARGEST_VERSION + 1


def test_sizes_are_those_of_the_cluster() -> None:
    for sizes, problem in (
        ((1,), "got 1 sizes, expected 2"),
        ((65, 32), "got 65 for worker 0, expected 0..64"),
        ((0, 31), "got 31 for worker 1, expected 32..1024"),
    ):
        assert problem in wrong_plan(Plan(1, sizes), Plan(0, (1, 32)), BOUNDS)
    assert "got 0 for all workers" in wrong_plan(Plan(1, (0, 0)), Plan(0, (1, 1)), ((0, 9), (0, 9)))
