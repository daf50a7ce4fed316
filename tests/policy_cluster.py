"""A small cluster for tests of policies: affine compute times, one shared network, exact or noisy records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from dynamix_ps.messages import Plan, WindowRecord
from dynamix_ps.policy.base import LR_RULES, Decision, Policy, View
from tests.control_plane import record

WINDOW = 20  # iterations


@dataclass
class SmallCluster:
    """t_i(b) = fixed_s + b / speed_i; T = (C^overlap + network_s^overlap)^(1/overlap)."""

    speeds: list[float]
    fixed_s: float = 0.02
    network_s: float = 0.1
    overlap: float = 1.0
    noise_scale: float = math.nan
    start: int = 64
    low: int = 32
    high: int = 1024
    jitter: float = 0.0
    lr_rule: str = "adascale"
    trained_ratio: float = math.nan
    lr_ratio: float = 1.0
    seed: int = 0
    plan: Plan = field(init=False)
    window: int = 0

    def __post_init__(self) -> None:
        self.plan = Plan(0, (self.start,) * len(self.speeds))
        self._rng = np.random.default_rng(self.seed)

    def compute_s(self, sizes: Sequence[float]) -> NDArray[np.float64]:
        return np.asarray(self.fixed_s + np.asarray(sizes) / np.asarray(self.speeds))

    def step_s(self, sizes: Sequence[float]) -> float:
        longest = float(self.compute_s(sizes).max())
        return float((longest**self.overlap + self.network_s**self.overlap) ** (1 / self.overlap))

    def goodput(self, sizes: Sequence[float]) -> float:
        """As Pollux has it, up to a constant."""
        total = sum(sizes)
        return total / self.step_s(sizes) / (self.noise_scale + total)

    def view(self) -> View:
        """The next window under the present plan."""
        times = self.compute_s(self.plan.batch_sizes) * (1 + self.jitter * self._rng.standard_normal(len(self.speeds)))
        step_s = self.step_s(self.plan.batch_sizes)
        records = tuple(
            record(
                rank,
                self.window,
                plan_version=self.plan.version,
                batch_size=size,
                samples=WINDOW * size,
                compute_s=WINDOW * float(times[rank]),
                duration_s=WINDOW * step_s,
                noise_variance=self.noise_scale,
                noise_signal=1.0,
                trained_ratio=self.trained_ratio,
                lr_ratio=self.lr_ratio,
            )
            for rank, size in enumerate(self.plan.batch_sizes)
        )
        self.window += 1
        bounds = ((self.low, self.high),) * len(self.speeds)
        initial = self.start * len(self.speeds)
        return View(self.window - 1, self.plan, bounds, records, lr_rule=self.lr_rule, reference_batch=initial)

    def step(self, policy: Policy) -> Decision:
        """One window, and the policy's next plan."""
        decision = policy.decide(self.view())
        if decision.batch_sizes != self.plan.batch_sizes:
            self.plan = Plan(self.plan.version + 1, decision.batch_sizes)
        return decision

    def run(self, policy: Policy, windows: int) -> None:
        """So many windows."""
        for _ in range(windows):
            self.step(policy)


_ANY = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from((math.nan, math.inf, -math.inf, 0.0, -1.0, 1e-300))
)
_USUAL = st.one_of(st.floats(1e-3, 1e3), _ANY)


@st.composite
def any_views(draw: st.DrawFn, windows: int = 4) -> list[View]:
    """A few windows of one cluster: any numbers, any worker missing, paused or stale windows, changing plans."""
    workers = draw(st.integers(1, 5))
    bounds = tuple((low := draw(st.integers(0, 64)), draw(st.integers(max(low, 1), 1024))) for _ in range(workers))
    views, version = [], 0
    for window in range(windows):
        sizes = tuple(draw(st.integers(low, high)) for low, high in bounds)
        plan = Plan(version := version + draw(st.integers(0, 1)), sizes)
        records = tuple(draw(_records(rank, window, plan)) if draw(st.booleans()) else None for rank in range(workers))
        rule, reference = draw(st.sampled_from(LR_RULES)), draw(st.integers(0, 5000))
        views.append(View(window, plan, bounds, records, lr_rule=rule, reference_batch=reference))
    return views


@st.composite
def _records(draw: st.DrawFn, rank: int, window: int, plan: Plan) -> WindowRecord:
    return record(
        rank,
        window,
        iterations=draw(st.integers(0, 100)),
        plan_version=draw(st.sampled_from((plan.version, plan.version, plan.version, plan.version - 1))),
        batch_size=plan.batch_sizes[rank],
        samples=draw(st.one_of(st.integers(0, 20_000), st.just(2**40))),
        duration_s=draw(_USUAL),
        compute_s=draw(_USUAL),
        push_pull_s=draw(_ANY),
        noise_variance=draw(_USUAL),
        noise_signal=draw(_USUAL),
        trained_ratio=draw(_ANY),
        lr_ratio=draw(_ANY),
        memory_ratio=draw(_ANY),
        flagged=draw(st.sampled_from((False, False, False, True))),
    )


def assert_valid(decision: Decision, view: View) -> None:
    """Whole sizes within their bounds, one per worker."""
    assert len(decision.batch_sizes) == len(view.bounds)
    for size, (low, high) in zip(decision.batch_sizes, view.bounds, strict=True):
        assert type(size) is int
        assert low <= size <= high
