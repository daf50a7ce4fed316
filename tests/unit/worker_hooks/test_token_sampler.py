"""Budgets of tokens: every sample once per epoch, no batch above its budget, the same split on all workers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_hooks.sampling.sampler import Cursor
from worker_hooks.sampling.token_sampler import TokenSampler

lengths = st.lists(st.integers(0, 40), min_size=1, max_size=120)
plans = st.integers(1, 5).flatmap(
    lambda workers: st.lists(st.lists(st.integers(0, 200), min_size=workers, max_size=workers).filter(any), min_size=1)
)


def sampler_of(found: list[int], seed: int = 1, padded: bool = False, smallest: int = 1) -> TokenSampler:
    return TokenSampler(np.array(found, dtype=np.int64), len(found), seed, smallest, padded=padded)


@given(lengths, plans, st.booleans(), st.integers(0, 3))
def test_every_sample_comes_once_and_no_batch_is_above_its_budget(found, budgets, padded, seed):
    """Plans change from iteration to iteration."""
    sampler = sampler_of(found, seed, padded)
    cursor, seen, number = Cursor(), [], 0
    while cursor.epoch == 0:
        plan = budgets[number % len(budgets)]
        step = sampler.plan_step(cursor, plan)
        assert step == sampler_of(found, seed, padded).plan_step(cursor, plan), "whatever came before"
        for rank, budget in enumerate(plan):
            mine = sampler.indices(step, rank)
            costs = [max(found[row], 1) for row in mine]
            cost = len(costs) * max(costs, default=0) if padded else sum(costs)
            assert step.tokens[rank] == cost
            assert cost <= budget or sum(step.sizes) == 1
            seen += mine.tolist()
        assert sum(step.sizes) > 0
        cursor, number = step.next, number + 1
    assert sorted(seen) == list(range(len(found)))
    assert cursor == Cursor(1, 0)


def test_budgets_are_full_but_for_a_part_of_a_sample():
    sampler = sampler_of([7] * 1000)
    step = sampler.plan_step(Cursor(), (100, 50, 0, 7))
    assert step.sizes == (14, 7, 0, 1)
    assert step.tokens == (98, 49, 0, 7)


def test_the_end_of_an_epoch_is_shared_by_its_last_iterations():
    sampler, cursor, taken = sampler_of([10] * 130), Cursor(), []
    while cursor.epoch == 0:
        step = sampler.plan_step(cursor, (300, 100))
        taken.append(sum(step.tokens))
        cursor = step.next
    assert sum(taken) == 1300
    assert min(taken) >= 200


def test_where_layers_compare_samples_no_batch_has_a_single_one():
    sampler, cursor = sampler_of([5, 9, 2, 30, 4, 6, 7], smallest=2), Cursor()
    while cursor.epoch == 0:
        step = sampler.plan_step(cursor, (12, 9))
        assert 1 not in step.sizes or step.next.epoch == 1
        cursor = step.next


def test_the_order_may_be_one_that_the_script_draws():
    order = np.array([3, 3, 0, 1], dtype=np.int64)  # with replacement, and longer than the pass
    sampler = TokenSampler(np.array([4, 5, 6, 7]), 3, seed=1, order=lambda seed, epoch: order)
    step = sampler.plan_step(Cursor(), (14, 4))
    assert [sampler.indices(step, rank).tolist() for rank in range(2)] == [[3, 3], [0]]
    assert (step.tokens, step.next) == ((14, 4), Cursor(1, 0))


def test_a_plan_or_a_data_set_without_anything_is_refused():
    with pytest.raises(ValueError, match="at least one sample"):
        sampler_of([])
    with pytest.raises(ValueError, match=r"at least one token per iteration, got \(0, 0\)"):
        sampler_of([3]).plan_step(Cursor(), (0, 0))
