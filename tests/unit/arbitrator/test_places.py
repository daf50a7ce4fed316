"""The arbitrator finds the same plans as the workers where these come and go."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.arbitrator.places import WorkerPlaces
from dynamix_ps.config.schema import BatchBounds, Cluster, Config, Elastic, Keep, WorkerSection
from dynamix_ps.messages import Plan
from tests.control_plane import run_under
from worker_hooks.planning.plan_switch import PlanSwitch

OWN = (8, 16, 4, 12)


def config_of(keep: Keep = "global", low: int = 2) -> Config:
    cluster = Cluster(workers=tuple(WorkerSection(batch=size) for size in OWN))
    return Config(cluster=cluster, elastic=Elastic(min_workers=1, keep=keep), batch=BatchBounds(min=low, max=64))


@given(
    random=st.randoms(use_true_random=False),
    sizes=st.tuples(*[st.integers(2, 20)] * 4),
    keep=st.sampled_from(["global", "local"]),
)
def test_who_goes_and_comes_changes_plans_as_it_does_in_the_workers(
    random: Random, sizes: tuple[int, ...], keep: Keep
) -> None:
    plan = Plan(3, sizes)
    places, switch = (
        WorkerPlaces(config_of(keep), plan),
        PlanSwitch(plan, bounds=[(2, 64)] * 4, keep=keep, slot_sizes=OWN),
    )
    for iteration in range(12):
        rank = random.randrange(4)
        if rank in places.empty:
            plan = places.taking_in(rank, plan)
            switch.take_in(iteration, [rank])
        elif len(places.empty) < 3:
            places.empty.add(rank)
            plan = places.without_empty(plan)
            switch.go_without(iteration, [rank])
        assert plan == switch.newest_scheduled
        assert [size > 0 for size in plan.batch_sizes] == [other not in places.empty for other in range(4)]
        assert [high > 0 for _, high in places.within(((2, 64),) * 4)] == [size > 0 for size in plan.batch_sizes]


def test_after_a_restart_the_plan_tells_who_is_there() -> None:
    plan = Plan(3, (10, 0, 30, 0))
    assert WorkerPlaces(config_of(), plan).empty == {1, 3}
    assert WorkerPlaces(config_of(low=0), plan).empty == set(), (
        "a policy may give a worker nothing where the bounds allow it"
    )


@pytest.mark.parametrize("keep", ["global", "local"])
def test_one_comes_where_the_only_one_that_was_left_is_lost(keep: Keep) -> None:
    """The arbitrator hears of the loss before it hears of the other one, which is in the sums already."""
    plan = Plan(3, (40, 0, 0, 0))
    places = WorkerPlaces(config_of(keep), plan)
    places.empty.add(0)
    assert places.without_empty(plan).batch_sizes == (0, 0, 0, 0)
    assert places.taking_in(1, plan).batch_sizes == (0, 40, 0, 0)


def test_a_place_is_vacated_with_the_first_window_without_its_worker() -> None:
    plan = Plan(3, (10, 20, 30, 40))
    places = WorkerPlaces(config_of(), plan)
    for rank in range(4):
        assert places.register(rank, f"life-{rank}", now_s=0.0)
    assert not places.register(2, "life-2", now_s=0.0)
    assert places.leave(2, "life-2") and not places.leave(2, "life-2")
    records = run_under(plan, 0)
    assert not places.vacate(records), "the worker was there for all of this window"
    records[2] = None
    assert places.vacate(records)
    assert places.empty == {2} and 2 in places.leases.absent(now_s=0.0)
    assert places.without_empty(plan).batch_sizes[2] == 0


def test_places_are_vacated_together_once_no_worker_that_leaves_is_in_the_window() -> None:
    plan = Plan(3, (10, 20, 30, 40))
    places, records = WorkerPlaces(config_of(), plan), run_under(plan, 0)
    for rank in (1, 2):
        places.register(rank, "first", now_s=0.0)
        places.depart(rank)
    records[1] = None
    assert not places.vacate(records) and places.empty == set()
    records[2] = None
    assert places.vacate(records) and places.empty == {1, 2}


def test_a_worker_that_has_departed_may_come_back() -> None:
    plan = Plan(3, (10, 20, 30, 40))
    places = WorkerPlaces(config_of(), plan)
    places.register(1, "first", now_s=0.0)
    places.depart(1)
    assert places.register(1, "second", now_s=1.0)
    assert not places.vacate([None] * 4)
