"""Samples whose worker was lost come again: every sample once per epoch, whatever is lost and when it is known."""

from __future__ import annotations

from collections import Counter, deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.errors import CheckpointError
from worker_hooks.sampling.sampler import Cursor, GlobalSampler, Range, cut
from worker_hooks.sampling.token_sampler import TokenSampler
from worker_hooks.saved.checkpoint import Position

WORKERS, EPOCHS = 3, 3
sizes_of_three = st.lists(st.integers(0, 30), min_size=WORKERS, max_size=WORKERS).filter(any)
losses = st.lists(st.sets(st.integers(0, WORKERS - 1)), max_size=40)


def train(sampler, plans, lost, lag, restart_every=0):
    """EPOCHS epochs in which iteration t loses the parts of the workers `lost[t]`, each known `lag` iterations later.

    With `restart_every` the training is left and begun anew so often: what it has prepared is forgotten.
    Returns how often each sample of each epoch was in a sum, and the places after every iteration.
    """
    cursor, seen, places = Cursor(), Counter(), []
    prepared = deque()  # iterations whose sizes are fixed
    known = []  # (iteration from which on they are owed, ranges)
    place, number, next_one = cursor, 0, 0
    while cursor.complete_epochs < EPOCHS:
        while len(prepared) <= lag and place.complete_epochs < EPOCHS:
            for first, ranges in known:
                place = place.owing(ranges if first == next_one else ())
            prepared.append(sampler.plan_step(place, plans[next_one % len(plans)]))
            place, next_one = prepared[-1].next, next_one + 1
        step = prepared.popleft()
        absent = lost[number] if number < len(lost) else set()
        owed = []
        for rank in range(len(step.sizes)):
            ranges = sampler.ranges(step, rank)
            assert sum(one.samples for one in ranges) == step.sizes[rank] == len(sampler.indices(step, rank))
            if rank in absent:
                owed += ranges
            else:
                seen.update((one.epoch, at) for one in ranges for at in range(one.begin, one.end))
        number += 1
        known.append((number + lag, owed))
        cursor = step.next
        for first, ranges in known:
            cursor = cursor.owing(ranges if first >= number else ())
        places.append((step, cursor))
        ends = cursor.complete_epochs < EPOCHS and not prepared and place.complete_epochs >= EPOCHS
        if ends or (restart_every and number % restart_every == 0):
            place, next_one = cursor, number
            prepared.clear()
            known.clear()
    return seen, places


def every_sample_once(length):
    return Counter((epoch, at) for epoch in range(EPOCHS) for at in range(length))


@given(
    length=st.integers(1, 120),
    plans=st.lists(sizes_of_three, min_size=1, max_size=5),
    lost=losses,
    lag=st.integers(0, 4),
    restart_every=st.integers(0, 7),
    smallest=st.integers(1, 2),
)
def test_every_sample_once_per_epoch_whatever_is_lost(length, plans, lost, lag, restart_every, smallest):
    sampler = GlobalSampler(length, 5, smallest)
    seen, places = train(sampler, plans, lost, lag, restart_every)
    assert seen == every_sample_once(length)
    assert places[-1][1] == Cursor(EPOCHS)
    for step, cursor in places:
        assert len({one.epoch for one in sampler.ranges(step, 0, WORKERS)}) == 1, "samples of one epoch"
        assert smallest == 1 or length == 1 or 1 not in step.sizes or sum(step.sizes) == 1
        packed = {"epoch": cursor.epoch, "position": cursor.position, "owed": [list(one) for one in cursor.owed]}
        assert read(packed, length) == cursor, "a checkpoint holds all of it"


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=80),
    plans=st.lists(st.lists(st.integers(1, 100), min_size=WORKERS, max_size=WORKERS), min_size=1, max_size=5),
    lost=losses,
    lag=st.integers(0, 3),
    padded=st.booleans(),
)
def test_budgets_of_tokens_do_so_too(lengths, plans, lost, lag, padded):
    sampler = TokenSampler(np.array(lengths), len(lengths), 5, padded=padded)
    seen, places = train(sampler, plans, lost, lag)
    assert seen == every_sample_once(len(lengths))
    for step, _ in places:
        for rank, tokens in enumerate(step.tokens):
            costs = [max(lengths[row], 1) for row in sampler.indices(step, rank)]
            assert tokens == (len(costs) * max(costs, default=0) if padded else sum(costs))


def read(packed, samples):
    from tests.unit.worker_hooks.test_checkpoint import POSITION

    return Position.unpack(POSITION.pack() | {"cursor": packed, "epoch_samples": samples, "left": None}).cursor


def test_what_is_owed_comes_next_and_then_the_rest_of_the_epoch():
    sampler = GlobalSampler(100, 0)
    cursor = Cursor(0, 30).owing([Range(0, 10, 14), Range(0, 22, 25)])
    step = sampler.plan_step(cursor, (5, 3, 2))
    assert sampler.ranges(step, 0) == (Range(0, 10, 14), Range(0, 22, 23))
    assert sampler.ranges(step, 1) == (Range(0, 23, 25), Range(0, 30, 31))
    assert sampler.ranges(step, 2) == (Range(0, 31, 33),)
    assert step.next == Cursor(0, 33)
    order = GlobalSampler(100, 0).indices(GlobalSampler(100, 0).plan_step(Cursor(), (100,)), 0)
    assert sampler.indices(step, 1).tolist() == order[[23, 24, 30]].tolist()


def test_an_epoch_is_complete_when_it_owes_nothing():
    sampler = GlobalSampler(20, 0)
    cursor = Cursor(1, 4).owing([Range(0, 15, 20)])
    assert (cursor.complete_epochs, cursor.is_inside, cursor.owed_samples) == (0, True, 5)
    step = sampler.plan_step(cursor, (2, 2))
    assert step.sizes == (2, 1), "the last two iterations of an epoch share what is left"
    step = sampler.plan_step(step.next, (2, 2))
    assert (step.sizes, step.next) == ((1, 1), Cursor(1, 4))
    assert step.next.complete_epochs == 1


def test_ranges_that_touch_are_one_and_empty_ones_none():
    cursor = Cursor(0, 50).owing([Range(0, 20, 30), Range(0, 7, 7)]).owing([Range(0, 30, 31), Range(0, 5, 9)])
    assert cursor == Cursor(0, 50, (Range(0, 5, 9), Range(0, 20, 31)))
    assert cut(cursor.owed, 2, 5) == (Range(0, 7, 9), Range(0, 20, 23))


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([Range(0, 10, 20), Range(0, 19, 21)], "samples from 19 on of epoch 0 are owed already"),
        ([Range(1, 30, 41)], "samples up to 41 of epoch 1 are not behind"),
        ([Range(2, 0, 1)], "samples up to 1 of epoch 2 are not behind"),
    ],
)
def test_what_cannot_be_owed_is_refused(ranges, message):
    with pytest.raises(ValueError, match=message):
        Cursor(1, 40).owing(ranges)


@pytest.mark.parametrize(
    ("owed", "message"),
    [
        (3, r"position.cursor.owed: got 3, expected a list"),
        ([[0, 5]], r"position.cursor.owed\[0\]: got 2 values, expected 3"),
        ([[2, 0, 5]], r"position.cursor.owed\[0\]\[0\]: got 2, expected a whole number from 0 to 1"),
        ([[0, 5, 101]], r"position.cursor.owed\[0\]\[2\]: got 101, expected a whole number from 1 to 100"),
        ([[1, 5, 31]], r"position.cursor.owed\[0\]\[2\]: got 31, expected a whole number from 1 to 30"),
        ([[1, 5, 5]], r"position.cursor.owed\[0\]\[1\]: got 5, expected a whole number from 0 to 4"),
        ([[0, 1, 9], [0, 8, 9]], r"position.cursor.owed: samples from 8 on of epoch 0 are owed already"),
    ],
)
def test_a_wrong_range_in_a_checkpoint_is_named(owed, message):
    with pytest.raises(CheckpointError, match=message):
        read({"epoch": 1, "position": 30, "owed": owed}, 100)
