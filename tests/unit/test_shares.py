"""The sizes of a plan where workers come and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.messages import Plan
from dynamix_ps.shares import left_to_others, shared_out, taken_in


def test_shares_stay_within_bounds_and_the_global_batch_too_where_it_can() -> None:
    bounds = [(1, 20), (2, 10), (0, 100)]
    assert shared_out(Plan(4, (20, 10, 2)), 32, (1, 1, 0), bounds) == Plan(4, (20, 10, 2))
    assert shared_out(Plan(4, (20, 10, 90)), 120, (1, 1, 0), [*bounds[:2], (0, 0)]).batch_sizes == (20, 10, 0)
    assert shared_out(Plan(4, (1, 1)), 2, (1, 1), bounds[:2]).batch_sizes == (1, 2)


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=4),
    own=st.lists(st.integers(1, 50), min_size=6, max_size=6),
    count=st.integers(1, 2),
)
def test_workers_that_enter_leave_the_global_batch_as_it_is(sizes: list[int], own: list[int], count: int) -> None:
    ranks = [len(sizes) + number for number in range(count)]
    plan = Plan(3, (*sizes, *(0,) * count))
    found = taken_in(plan, ranks, own)
    assert (found.version, found.global_batch) == (3, plan.global_batch)


@pytest.mark.parametrize(("keep", "sizes"), [("global", (8, 4, 12)), ("local", (12, 6, 18))])
def test_each_gets_what_it_has_by_itself_compared_with_the_others(keep, sizes) -> None:
    assert taken_in(Plan(0, (16, 8, 0)), [2], (8, 4, 12), keep=keep).batch_sizes == sizes


@pytest.mark.parametrize(("keep", "sizes"), [("global", (32, 0, 16, 0)), ("local", (16, 0, 8, 0))])
def test_the_others_share_what_those_have_that_are_not_there(keep, sizes) -> None:
    assert left_to_others(Plan(3, (16, 20, 8, 4)), {1, 3}, keep=keep) == Plan(3, sizes)
    within = left_to_others(Plan(0, (16, 20, 8, 4)), {1, 3}, [(2, 30)] * 4)
    assert within.batch_sizes == (30, 0, 18, 0), "as far as the bounds allow it"


def test_who_had_nothing_takes_over_from_the_only_ones_that_had_some() -> None:
    for keep in ("global", "local"):
        assert left_to_others(Plan(0, (8, 0, 0)), {0}, [(2, 64)] * 3, keep).batch_sizes == (0, 4, 4)
    assert left_to_others(Plan(0, (8, 0)), {0, 1}, [(2, 64)] * 2).batch_sizes == (0, 0), "nobody is left"
