"""A changed cluster shows in the waiting times of workers, if the change lasts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_hooks.observe.change import LASTING, MORE, REMEMBERED, ChangeWatch


def seen(iterations):
    """At which of these (waited by worker, lasted) the watch says that the cluster has changed."""
    watch = ChangeWatch()
    return [index for index, (waited_s, lasted_s) in enumerate(iterations) if watch.see(waited_s, lasted_s)]


EVEN, SLOW = ((0.01, 0.02, 0.01), 0.1), ((0.4, 0.02, 0.4), 0.5)  # worker 1 is slow


@pytest.mark.parametrize(("one", "other"), [(EVEN, SLOW), (SLOW, ((0.01, 0.42, 0.01), 0.5))])
def test_a_worker_that_becomes_slow_and_one_that_returns_are_changes_and_are_told_once(one, other):
    assert seen([one] * 10 + [other] * 20) == [10 + LASTING - 1]


def test_slow_and_back_are_two_changes():
    assert seen([EVEN] * 10 + [SLOW] * 10 + [EVEN] * 10) == [12], "that nobody waits any more is none"
    back = ((0.01, 0.4, 0.01), 0.5)  # other sizes in the meantime: who was slow now waits
    assert seen([EVEN] * 10 + [SLOW] * 10 + [back] * 10) == [12, 22]


def test_iterations_that_only_last_longer_are_no_change():
    """All workers, or the network, are slower alike: no other split would do."""
    assert seen([EVEN] * 10 + [(tuple(5 * s for s in EVEN[0]), 5 * EVEN[1])] * 10) == []


def test_what_happened_before_in_a_single_iteration_is_nothing_new():
    assert seen([EVEN] * 5 + [SLOW] + [EVEN] * 3 + [SLOW] * 4) == []


def test_chance_is_hardly_ever_a_change():
    """Times under a CPU quota and packets that are sent again: large, and not for long."""
    random = np.random.default_rng(1)
    late = random.random(2000) < 0.1
    parts = random.uniform(0, MORE, (2000, 3)) + 0.6 * late[:, None]
    assert len(seen([(tuple(row), 1.0) for row in parts])) <= 2


def test_what_is_not_known_is_no_change_and_a_restart_forgets():
    watch = ChangeWatch()
    assert not watch.see((0.0, 0.0), 0.0), "before the first iteration is complete"
    for _ in range(10):
        watch.see(*EVEN)
    watch.restart()
    assert not any(watch.see(*SLOW) for _ in range(10))


def waits(*parts: float) -> st.SearchStrategy[list[tuple[float, float]]]:
    """Iterations in which two workers wait for one of these parts of them."""
    return st.lists(st.tuples(st.sampled_from(parts), st.sampled_from(parts)), min_size=LASTING, max_size=16)


@given(waits(0.0, 0.1), waits(0.3, 0.4))
def test_it_sees_first_what_the_rule_says(before: list[tuple[float, float]], after: list[tuple[float, float]]) -> None:
    watch, waited = ChangeWatch(), before + after
    for number, one in enumerate(waited, start=1):
        of_workers = zip(*waited[max(0, number - LASTING - REMEMBERED) : number], strict=True)
        changed = number >= 2 * LASTING and any(min(w[-LASTING:]) > max(w[:-LASTING]) + MORE for w in of_workers)
        assert watch.see(one, 1.0) is changed
        if changed:
            return
