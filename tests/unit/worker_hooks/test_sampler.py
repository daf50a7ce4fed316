"""Invariant 3: every sample once per epoch, and the same number of steps on all workers, for any sizes."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worker_hooks.sampling.sampler import Cursor, GlobalSampler, Permutation

sizes_of_three = st.lists(st.integers(0, 40), min_size=3, max_size=3).filter(lambda sizes: sum(sizes) > 0)


@given(
    length=st.integers(1, 300),
    seed=st.integers(0, 5),
    plans=st.lists(sizes_of_three, min_size=1, max_size=8),
    resume_at=st.integers(0, 20),
    workers=st.integers(1, 6),
)
def test_every_sample_once_over_changing_sizes_and_a_resume_with_any_workers(length, seed, plans, resume_at, workers):
    sampler, cursor, seen, iteration = GlobalSampler(length, seed), Cursor(), [], 0
    while cursor.epoch == 0:
        if iteration == resume_at:  # a new process knows only the seed and the cursor
            sampler, cursor = GlobalSampler(length, seed), Cursor(cursor.epoch, cursor.position)
            plans = [[sum(sizes), *[3] * (workers - 1)] for sizes in plans]
        step = sampler.plan_step(cursor, plans[iteration % len(plans)])
        for rank in range(len(step.sizes)):
            mine = sampler.indices(step, rank)
            assert len(mine) == step.sizes[rank]
            seen += mine.tolist()
        cursor, iteration = step.next, iteration + 1
    assert sorted(seen) == list(range(length))


@given(length=st.integers(1, 300), sizes=sizes_of_three)
def test_the_planned_sizes_are_used_but_in_the_last_two_iterations_which_share_what_is_left(length, sizes):
    sampler, cursor, steps = GlobalSampler(length, 0), Cursor(), []
    while cursor.epoch == 0:
        steps.append(sampler.plan_step(cursor, sizes))
        cursor = steps[-1].next
    whole, left = divmod(length, sum(sizes))
    assert len(steps) == whole + (left > 0)
    if left == 0:
        assert all(step.sizes == tuple(sizes) for step in steps)
        return
    assert all(step.sizes == tuple(sizes) for step in steps[:-2])
    assert all(used <= planned for step in steps[-2:] for used, planned in zip(step.sizes, sizes, strict=True))
    if whole:
        before, last = (sum(step.sizes) for step in steps[-2:])
        assert 0 <= before - last <= 1


def test_the_order_depends_on_the_seed_and_the_epoch():
    orders = {
        tuple(GlobalSampler(50, seed).indices(GlobalSampler(50, seed).plan_step(Cursor(epoch, 0), [50]), 0).tolist())
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(orders) == 4


def test_the_short_last_iteration_is_split_as_planned():
    assert GlobalSampler(12, 0).plan_step(Cursor(), [16, 8, 0]).sizes == (8, 4, 0)


def test_a_plan_without_samples_is_refused():
    with pytest.raises(ValueError, match="at least one sample"):
        GlobalSampler(10, 0).plan_step(Cursor(), [0, 0])


@given(
    length=st.integers(2, 200),
    plans=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(lambda s: sum(s) > 1), min_size=1),
)
@example(length=3, plans=[[1, 1, 0]])
def test_batch_norm_never_gets_a_single_sample(length, plans):
    sampler, cursor, seen, number = GlobalSampler(length, seed=1, smallest=2), Cursor(), 0, 0
    while cursor.epoch < 2:
        step = sampler.plan_step(cursor, plans[number % len(plans)])
        assert 1 not in step.sizes
        seen, cursor, number = seen + sum(step.sizes), step.next, number + 1
    assert seen == 2 * length


def test_another_seed_has_another_order_also_in_the_same_epoch():
    order = Permutation(50)
    first, other = order(1, 0), order(2, 0)
    assert first.tolist() != other.tolist() and sorted(first) == sorted(other)
    assert order(1, 0).tolist() == first.tolist()
