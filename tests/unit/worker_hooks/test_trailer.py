"""The values of the trailer are read back exactly from the sum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_hooks.exchange import trailer
from worker_hooks.exchange.trailer import Contribution
from worker_hooks.workers import Workers

contribution = st.builds(
    Contribution,
    samples=st.integers(0, 2000),
    loss=st.floats(0, 1e4),
    correct=st.just(math.nan) | st.integers(0, 2000).map(float),
    judged=st.integers(0, 2000),
    grad_sq=st.just(math.nan) | st.floats(1e-30, 100),
    plan_version=st.integers(0, 3),
    waited_s=st.floats(0, 100),
    doing=st.integers(0, 2**24 - 1),
    weights=st.tuples(st.floats(-64, 64, width=32), st.floats(-100, 100, width=32)),
    global_sq=st.just(math.nan) | st.floats(1e-30, 100),
    lasted_s=st.floats(0, 100),
    ending=st.booleans(),
    leaving=st.booleans(),
    saves=st.booleans(),
    member=st.integers(1, 2**24 - 1),
    entry_version=st.integers(0, 3),
    units=st.just(0.0) | st.integers(0, 10**6).map(float),
    stream=st.tuples(*(st.integers(0, 2**24 - 1).map(float) for _ in range(4))),
)


def summed(parts: list[Contribution | None], present: list[list[bool]], dtype: type = np.float32) -> np.ndarray:
    """None: an empty slot."""
    length = trailer.length(len(parts), len(present[0]))
    rows = np.full((len(parts), length), 7.0, dtype=dtype)  # left over from the iteration before
    leader = min(rank for rank, part in enumerate(parts) if part is not None)
    for rank, part in enumerate(parts):
        if part is None:
            rows[rank] = 0
            continue
        has = np.array(present[rank], dtype=bool)
        trailer.encode([part], rank, len(parts), has, out=rows[rank], leads=rank == leader)
    return np.sum(rows, axis=0, dtype=dtype)


def decoded(parts: list[Contribution | None]) -> trailer.GlobalView:
    return trailer.decode(summed(parts, [[True]] * len(parts)), len(parts))


@given(st.lists(contribution, min_size=1, max_size=6))
def test_the_sum_tells_every_worker_the_same_global_state(parts):
    view = decoded(parts)
    samples = sum(p.samples for p in parts)
    assert view.samples == samples
    assert view.worker_samples == tuple(p.samples for p in parts)
    assert view.grad_sq == pytest.approx([p.grad_sq for p in parts], rel=1e-6, nan_ok=True)
    assert view.agreed_version == (parts[0].plan_version if len({p.plan_version for p in parts}) == 1 else None)
    assert view.agreed_entry == (parts[0].entry_version if len({p.entry_version for p in parts}) == 1 else None)
    assert view.waited_s == pytest.approx([p.waited_s for p in parts], rel=1e-6)
    assert view.lasted_s == pytest.approx(sum(p.lasted_s for p in parts) / len(parts), rel=1e-6)
    assert view.broken_ranks == ()
    assert view.global_sq == pytest.approx(parts[0].global_sq, rel=1e-6, nan_ok=True)  # worker 0's alone
    assert view.doing == tuple(p.doing for p in parts), "exact in float32"
    assert list(zip(*view.weights, strict=True)) == [p.weights for p in parts]
    assert view.members == tuple(p.member for p in parts), "exact in float32"
    assert view.ending_ranks == tuple(rank for rank, p in enumerate(parts) if p.ending)
    assert view.ending == any(p.ending for p in parts)
    assert view.leaving_ranks == tuple(rank for rank, p in enumerate(parts) if p.leaving)
    assert view.saves == parts[0].saves
    judged = [p for p in parts if not math.isnan(p.correct)]
    if sum(p.judged for p in judged):
        assert view.accuracy == pytest.approx(sum(p.correct for p in judged) / sum(p.judged for p in judged), rel=1e-5)
    else:
        assert math.isnan(view.accuracy)
    assert view.units == tuple(p.units for p in parts), "exact in float32"
    assert view.stream == tuple(p.stream for p in parts), "exact in float32"
    total = sum(p.units for p in parts)
    assert view.loss_weight == (total or samples)
    if samples:
        assert view.loss == pytest.approx(sum(p.loss for p in parts) / (total or 1), rel=1e-4, abs=1e-6)


@given(st.lists(contribution, min_size=1, max_size=4), st.lists(st.integers(0, 6), max_size=4))
def test_empty_slots_change_nothing_but_where_a_worker_is_found(parts, gaps):
    slots: list[Contribution | None] = list(parts)
    for gap in gaps:
        slots.insert(min(gap, len(slots)), None)
    places = [slot for slot, part in enumerate(slots) if part is not None]
    whole, view = decoded(slots), decoded(parts)
    assert whole.present == places
    assert whole.shortest_wait_s == view.shortest_wait_s
    assert whole.ending_ranks == tuple(places[rank] for rank in view.ending_ranks)
    assert whole.leaving_ranks == tuple(places[rank] for rank in view.leaving_ranks)
    assert sum(whole.worker_samples) == sum(view.worker_samples)
    assert (whole.agreed_version, whole.saves) == (view.agreed_version, view.saves)
    for name in ("samples", "loss", "accuracy", "global_sq", "lasted_s"):
        assert getattr(whole, name) == pytest.approx(getattr(view, name), rel=1e-6, nan_ok=True), name
    for name in ("worker_samples", "waited_s", "doing", "members", "units", "stream"):
        assert [getattr(whole, name)[slot] for slot in places] == list(getattr(view, name)), name


@given(bad=st.sampled_from([math.nan, math.inf, -math.inf]), rank=st.integers(0, 2))
def test_a_broken_loss_is_named_and_does_not_poison_the_tail(bad, rank):
    parts = [Contribution(4, bad if r == rank else 8.0, 1.0, 1.0, 5, 0.0, 0, (0.0, 0.0)) for r in range(3)]
    view = decoded(parts)
    assert view.broken_ranks == (rank,)
    assert view.agreed_version == 5
    assert math.isfinite(view.loss)


@given(
    st.integers(1, 5).flatmap(
        lambda p: st.lists(st.lists(st.booleans(), min_size=p, max_size=p), min_size=1, max_size=4)
    )
)
def test_a_parameter_is_present_where_any_worker_has_a_gradient(present):
    parts = [Contribution(1, 1.0, 1.0, 1.0, 0, 0.0, 0, (0.0, 0.0)) for _ in present]
    found = trailer.present(summed(parts, present), len(parts))
    assert found.tolist() == [any(column) for column in zip(*present, strict=True)]


@given(st.lists(contribution, min_size=2, max_size=5))
def test_a_process_of_several_workers_sends_the_sum_of_theirs(parts):
    first = parts[0]
    common = {name: getattr(first, name) for name in ("plan_version", "entry_version", "ending", "leaving", "saves")}
    parts = [part._replace(**common) for part in parts]
    together = np.full(trailer.length(len(parts), 1), 7.0)
    trailer.encode(parts, 0, len(parts), np.array([True]), out=together, leads=True)
    view, expected = (
        trailer.decode(together, len(parts)),
        trailer.decode(summed(parts, [[True]] * len(parts), float), len(parts)),
    )
    for name, value in expected._asdict().items():
        nested = name in ("weights", "stream")
        for one, other in zip(getattr(view, name), value, strict=True) if nested else [(getattr(view, name), value)]:
            assert one == pytest.approx(other, nan_ok=True), name


def test_the_lowest_worker_that_is_left_leads():
    of_sum = trailer.SumTrailer(Workers(4, range(3, 4), (0, 1, 2, 3), later=frozenset({0})), parameters=1)
    assert (of_sum.present, of_sum.leader) == ((1, 2, 3), 1)
    of_sum.go_without([1])
    assert (of_sum.present, of_sum.leader) == ([2, 3], 2)
    of_sum.go_without([2, 3])
    assert of_sum.leader == 2, "nobody is left to lead"
