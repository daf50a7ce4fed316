from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.messages import Plan
from dynamix_ps.policy.learned.paper import PAPER_STEPS, paper_sizes
from dynamix_ps.policy.learned.structured import (
    BATCH_STEPS,
    SHARE_STEPS,
    batch_allowed,
    batch_target,
    structured_sizes,
)
from dynamix_ps.policy.model.advice import advised_batch
from dynamix_ps.policy.window_arrays import Array, WindowArrays, arrays_of
from tests.control_plane import run_under, view

STAY = SHARE_STEPS.index(0.0)


class Split:
    """A model to whom `balanced` is the split with which all finish together after 1 + `fixed` seconds."""

    def __init__(self, balanced: Array, fixed: float = 0.0) -> None:
        self._balanced, self._fixed_s = balanced, fixed

    def balanced(self, _totals: object) -> Array:
        return self._balanced

    def longest_s(self, sizes: Array) -> Array:
        return np.asarray(self._fixed_s + (sizes / self._balanced).max(axis=-1))


def window(*sizes: int, low: int = 32, high: int = 1024, absent: tuple[int, ...] = ()) -> WindowArrays:
    plan = Plan(0, sizes)
    records = [None if one is not None and one.rank in absent else one for one in run_under(plan, 0)]
    return arrays_of(view(plan, records, low, high))


def whole(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def paper(planned: int, low: int = 1, high: int = 4096) -> list[int]:
    """Where each of the steps leads from this size."""
    choices = np.arange(len(PAPER_STEPS))
    same = np.ones_like(choices)
    return [int(size) for size in paper_sizes(planned * same, choices, low * same, high * same)]


def test_the_five_published_steps() -> None:
    assert paper(400) == [300, 375, 400, 425, 500]


def test_paper_sizes_stay_within_the_published_bounds_and_those_of_the_worker() -> None:
    assert paper(40) == [32, 32, 40, 65, 140]
    assert paper(1020) == [920, 995, 1020, 1024, 1024]
    assert paper(400, low=380, high=410) == [380, 380, 400, 410, 410]
    assert paper(2000, low=1500) == [1500] * 5  # the worker's own bounds win over the published ones


def test_steps_start_from_the_advised_global_batch() -> None:
    seen = window(100, 100)
    assert advised_batch(seen, np.array(0.5)) == pytest.approx(200 * 2**0.5)
    assert advised_batch(seen, np.array(-3.0)) == 100  # at most a factor of 2 per window
    assert advised_batch(seen, np.array(3.0)) == 400
    for nothing in (0.0, np.nan):
        assert advised_batch(seen, np.array(nothing)) == 200


def test_steps_that_lead_nowhere_are_not_allowed() -> None:
    seen, none = window(40, 60, low=32, high=96), BATCH_STEPS.index(0.0)
    inside, smallest, largest = (batch_allowed(seen, np.array(total)).tolist() for total in (100.0, 64.0, 192.0))
    assert inside == [True] * len(BATCH_STEPS)
    assert smallest == [step >= none for step in range(len(BATCH_STEPS))]
    assert largest == [step <= none for step in range(len(BATCH_STEPS))]


def test_global_batch_is_the_reference_times_the_step_within_the_bounds() -> None:
    seen = window(100, 100, low=32, high=180)
    totals = [int(batch_target(seen, np.array(200.0), np.array(step))) for step in range(len(BATCH_STEPS))]
    assert totals == [100, 152, 180, 200, 222, 264, 360]
    last = np.array(len(BATCH_STEPS) - 1)
    assert int(batch_target(window(100, 100, low=8, high=999), np.array(400.0), last)) == 400  # at most doubled
    assert int(batch_target(window(50, 50, low=32, high=180), np.array(80.0), np.array(0))) == 64
    # who is absent keeps its size, so the others cannot make up for more than their own bounds
    alone = window(100, 100, low=32, high=180, absent=(1,))
    assert int(batch_target(alone, np.array(200.0), last)) == 280


def test_total_is_split_as_balanced_and_shares_shift_it() -> None:
    seen = window(100, 100, 100)
    balanced = np.array([100.0, 50.0, 150.0])
    stay = np.full(3, STAY)
    assert structured_sizes(seen, np.array(300), Split(balanced), stay).tolist() == [100, 50, 150]
    assert structured_sizes(seen, np.array(600), Split(balanced), stay).tolist() == [200, 100, 300]
    half = np.array([SHARE_STEPS.index(-1.0), STAY, STAY])
    assert structured_sizes(seen, np.array(500), Split(balanced), half).tolist() == [100, 100, 300]


def test_an_absent_worker_keeps_its_size() -> None:
    seen = window(100, 77, 100, absent=(1,))
    sizes = structured_sizes(seen, np.array(477), Split(np.array([300.0, 900.0, 100.0])), np.full(3, STAY))
    assert sizes.tolist() == [300, 77, 100]


def test_a_little_is_not_worth_a_switch_unless_the_global_batch_or_the_bounds_ask_for_it() -> None:
    stay = np.full(2, STAY)
    little, more = Split(np.array([514.0, 486.0])), Split(np.array([517.0, 483.0]))  # 2.8 % and 3.4 % shorter
    seen = window(500, 500)
    assert structured_sizes(seen, np.array(1000), little, stay).tolist() == [500, 500]
    assert structured_sizes(seen, np.array(1000), more, stay).tolist() == [517, 483]
    assert structured_sizes(seen, np.array(1002), little, stay).sum() == 1002
    outside = dataclasses.replace(seen, high=whole(1024, 495))
    assert structured_sizes(outside, np.array(1000), little, stay).tolist() == [514, 486]


def test_where_an_iteration_is_mostly_waiting_for_data_a_split_matters_less() -> None:
    balanced = np.array([560.0, 440.0])  # computing takes 12 % less
    stays = structured_sizes(window(500, 500), np.array(1000), Split(balanced, fixed=5.0), np.full(2, STAY))
    moves = structured_sizes(window(500, 500), np.array(1000), Split(balanced, fixed=0.5), np.full(2, STAY))
    assert (stays.tolist(), moves.tolist()) == ([500, 500], [560, 440])


def test_a_learned_share_counts_as_if_the_model_had_said_it() -> None:
    half = np.array([SHARE_STEPS.index(-1.0), STAY])
    sizes = structured_sizes(window(300, 300), np.array(600), Split(np.array([300.0, 300.0])), half)
    assert sizes.tolist() == [200, 400]
    again = structured_sizes(window(200, 400), np.array(600), Split(np.array([300.0, 300.0])), half)
    assert again.tolist() == [200, 400]


@st.composite
def windows(draw: st.DrawFn) -> WindowArrays:
    """Clusters (environments, workers) with any bounds, plans within them, and absent workers."""
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 5)))
    seed = np.random.default_rng(draw(st.integers(0, 2**32)))
    low = seed.integers(1, draw(st.sampled_from((2, 300))), shape)
    high = low + seed.integers(0, draw(st.sampled_from((1, 3000))), shape)
    present = seed.random(shape) < draw(st.sampled_from((0.3, 0.8, 1.0)))
    blank = window(*[64] * shape[1])
    return dataclasses.replace(blank, low=low, high=high, planned=seed.integers(low, high + 1), present=present)


@given(windows(), st.integers(0, 2**32), st.floats(-9, 9))
def test_any_state_and_actions_give_valid_sizes(seen: WindowArrays, seed: int, magnitude: float) -> None:
    rng, shape = np.random.default_rng(seed), seen.planned.shape
    reference = advised_batch(seen, 3 * rng.standard_normal((shape[0],)))
    assert batch_allowed(seen, reference).any(axis=-1).all()
    total = batch_target(seen, reference, rng.integers(len(BATCH_STEPS), size=(shape[0],)))
    balanced = np.maximum(10**magnitude * rng.standard_normal(shape), 1e-9)
    structured = structured_sizes(seen, total, Split(balanced), rng.integers(len(SHARE_STEPS), size=shape))
    assert (structured.sum(axis=-1) == total).all()
    assert (structured[~seen.present] == seen.planned[~seen.present]).all()
    steps = paper_sizes(seen.planned, rng.integers(len(PAPER_STEPS), size=shape), seen.low, seen.high)
    for sizes in (structured, steps):
        assert sizes.dtype == np.int64
        assert ((sizes >= seen.low) & (sizes <= seen.high)).all()


def test_the_dead_band_never_leaves_the_sum() -> None:
    for drawn in range(200):
        rng = np.random.default_rng(drawn)
        sizes = rng.integers(100, 900, 4)
        total = np.array(sizes.sum() + rng.integers(-1, 2))
        result = structured_sizes(window(*sizes), total, Split(sizes * rng.uniform(0.97, 1.03, 4)), np.full(4, STAY))
        assert result.sum() == total == pytest.approx(sizes.sum(), abs=1)
