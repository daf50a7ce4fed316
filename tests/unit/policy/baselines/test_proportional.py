from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.messages import Plan
from dynamix_ps.policy.baselines.proportional import ProportionalPolicy
from dynamix_ps.policy.baselines.static import StaticPolicy
from tests.control_plane import record, view


def settle(
    speeds: tuple[float, ...], fixed_s: float, windows: int, start: int = 128, noise: float = 0.0
) -> tuple[list[Plan], list[float]]:
    """Plans and relative spreads of compute time, for workers that need fixed_s + b / speed per iteration."""
    policy, plan, rng = ProportionalPolicy(len(speeds)), Plan(0, (start,) * len(speeds)), np.random.default_rng(0)
    plans, spreads = [plan], []
    for window in range(windows):
        times = [fixed_s + size / speed for size, speed in zip(plan.batch_sizes, speeds, strict=True)]
        spreads.append((max(times) - min(times)) / (sum(times) / len(times)))
        records = [
            record(
                rank,
                window,
                plan_version=plan.version,
                batch_size=size,
                samples=20 * size,
                compute_s=20 * time_s * (1 + noise * rng.standard_normal()),
            )
            for rank, (size, time_s) in enumerate(zip(plan.batch_sizes, times, strict=True))
        ]
        sizes = policy.decide(view(plan, records)).batch_sizes  # type: ignore[arg-type]
        if sizes != plan.batch_sizes:
            plan = Plan(plan.version + 1, sizes)
            plans.append(plan)
    return plans, spreads


def test_three_five_twelve_settles_in_few_steps_and_keeps_the_global_batch() -> None:
    plans, spreads = settle((300.0, 500.0, 1200.0), fixed_s=0.01, windows=8)
    assert spreads[0] > 0.9
    assert spreads[3] < 0.1
    assert len(plans) <= 4
    assert {plan.global_batch for plan in plans} == {384}
    assert plans[1].batch_sizes[0] < plans[1].batch_sizes[1] < plans[1].batch_sizes[2]


def test_exact_shares_without_fixed_cost() -> None:
    plans, _ = settle((300.0, 500.0, 1200.0), fixed_s=0.0, windows=3, start=100)
    assert plans[1:] == [Plan(1, (45, 75, 180))]


def test_dead_band_ignores_small_noise() -> None:
    plans, _ = settle((500.0, 500.0, 500.0), fixed_s=0.0, windows=30, noise=0.02)
    assert len(plans) == 1


def test_scatter_is_smoothed_and_a_jump_is_not() -> None:
    """The second worker is 10 % slower for a window, then three times as fast as at first."""
    policy, plan = ProportionalPolicy(2), Plan(0, (100, 100))

    def decide(window: int, time_s: float) -> tuple[int, ...]:
        records = [record(0, window, samples=100, compute_s=1.0), record(1, window, samples=100, compute_s=time_s)]
        return policy.decide(view(plan, records)).batch_sizes  # type: ignore[arg-type]

    assert [decide(window, 1.0) for window in range(3)] == [(100, 100)] * 3
    assert decide(3, 1.1) == (100, 100)
    assert decide(4, 1 / 3) == (50, 150)


def test_bounds_are_kept_and_what_they_take_goes_to_the_others() -> None:
    policy, plan = ProportionalPolicy(3), Plan(0, (100, 100, 100))
    records = [record(rank, samples=s, compute_s=1.0) for rank, s in enumerate((1, 100, 100))]
    assert policy.decide(view(plan, records, low=32)).batch_sizes == (32, 134, 134)  # type: ignore[arg-type]


def test_unclean_or_unmeasured_windows_keep_the_plan() -> None:
    policy, plan = ProportionalPolicy(2), Plan(3, (100, 100))
    uneven = [record(0, plan_version=3, compute_s=1.0), record(1, plan_version=3, compute_s=9.0, flagged=True)]
    assert policy.decide(view(plan, uneven)).batch_sizes == plan.batch_sizes  # type: ignore[arg-type]
    nothing = [record(rank, plan_version=3, samples=0, compute_s=0.0) for rank in range(2)]
    assert policy.decide(view(plan, nothing)).batch_sizes == plan.batch_sizes  # type: ignore[arg-type]
    assert policy.decide(view(plan, [None, None])).batch_sizes == plan.batch_sizes


def test_a_worker_never_measured_keeps_its_size() -> None:
    policy, plan = ProportionalPolicy(3), Plan(0, (100, 100, 100))
    records = [record(0, samples=100, compute_s=3.0), None, record(2, samples=100, compute_s=1.0)]
    assert policy.decide(view(plan, records)).batch_sizes == (50, 100, 150)


@given(
    st.lists(st.tuples(st.integers(0, 2000), st.floats(0, 1e8)), min_size=1, max_size=8),
    st.lists(st.integers(1, 3000), min_size=8, max_size=8),
)
def test_total_over_any_measurements(measured: list[tuple[int, float]], sizes: list[int]) -> None:
    plan = Plan(0, tuple(sizes[: len(measured)]))
    records = [record(rank, samples=s, compute_s=t) for rank, (s, t) in enumerate(measured)]
    answer = ProportionalPolicy(len(measured)).decide(view(plan, records)).batch_sizes  # type: ignore[arg-type]
    assert sum(answer) == plan.global_batch


def test_static_answers_with_its_vector() -> None:
    assert StaticPolicy((1, 2, 3)).decide(view(Plan(0, (9, 9, 9)), [None] * 3)).batch_sizes == (1, 2, 3)


def test_static_without_a_vector_keeps_the_sizes_that_the_run_begins_with() -> None:
    policy = StaticPolicy()
    for version, sizes in enumerate([(9, 5, 2), (8, 8, 8)]):
        assert policy.decide(view(Plan(version, sizes), [None] * 3)).batch_sizes == (9, 5, 2)


def test_static_goes_on_with_the_share_of_a_worker_that_comes_later() -> None:
    policy = StaticPolicy()
    for version, sizes in enumerate([(9, 5, 0), (6, 4, 4), (8, 3, 3)]):
        expected = (9, 5, 0) if version == 0 else (6, 4, 4)
        assert policy.decide(view(Plan(version, sizes), [None] * 3)).batch_sizes == expected
