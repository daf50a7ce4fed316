"""The values of the trailer are read back exactly from the sum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_hooks import trailer
from worker_hooks.trailer import Contribution

contribution = st.builds(
    Contribution,
    samples=st.integers(0, 2000),
    loss_sum=st.floats(0, 1e4),
    correct=st.just(math.nan) | st.integers(0, 2000).map(float),
    grad_sq=st.just(math.nan) | st.floats(1e-30, 100),
    plan_version=st.integers(0, 3),
    waited_s=st.floats(0, 100),
    global_sq=st.just(math.nan) | st.floats(1e-30, 100),
    lasted_s=st.floats(0, 100),
)


def summed(parts: list[Contribution], dtype: type = np.float32) -> np.ndarray:
    rows = np.full((len(parts), trailer.length(len(parts))), 7.0, dtype=dtype)  # left over from the iteration before
    for rank, part in enumerate(parts):
        trailer.encode(part, rank, len(parts), out=rows[rank])
    return np.sum(rows, axis=0, dtype=dtype)


@given(st.lists(contribution, min_size=1, max_size=6))
def test_the_sum_tells_every_worker_the_same_global_state(parts):
    view = trailer.decode(summed(parts), len(parts))
    samples = sum(p.samples for p in parts)
    assert view.samples == samples
    assert view.worker_samples == tuple(p.samples for p in parts)
    assert view.grad_sq == pytest.approx([p.grad_sq for p in parts], rel=1e-6, nan_ok=True)
    assert view.agreed_version == (parts[0].plan_version if len({p.plan_version for p in parts}) == 1 else None)
    assert view.waited_s == pytest.approx([p.waited_s for p in parts], rel=1e-6)
    assert view.lasted_s == pytest.approx(sum(p.lasted_s for p in parts) / len(parts), rel=1e-6)
    assert view.broken_ranks == ()
    assert view.global_sq == pytest.approx(parts[0].global_sq, rel=1e-6, nan_ok=True)  # worker 0's alone
    judged = [p for p in parts if not math.isnan(p.correct)]
    if sum(p.samples for p in judged):
        assert view.accuracy == pytest.approx(sum(p.correct for p in judged) / sum(p.samples for p in judged), rel=1e-5)
    else:
        assert math.isnan(view.accuracy)
    if samples:
        assert view.loss == pytest.approx(sum(p.loss_sum for p in parts) / samples, rel=1e-4, abs=1e-6)


@given(bad=st.sampled_from([math.nan, math.inf, -math.inf]), rank=st.integers(0, 2))
def test_a_broken_loss_is_named_and_does_not_poison_the_tail(bad, rank):
    parts = [Contribution(4, bad if r == rank else 8.0, 1.0, 1.0, 5, 0.0) for r in range(3)]
    view = trailer.decode(summed(parts), 3)
    assert view.broken_ranks == (rank,)
    assert view.agreed_version == 5
    assert math.isfinite(view.loss)
