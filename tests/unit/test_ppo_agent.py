from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dynamix_ps.config import Ppo
from dynamix_ps.messages import Plan
from dynamix_ps.policy.ppo.agent import ACTIONS, PpoPolicy, make_ppo
from dynamix_ps.policy.ppo.reward import reward
from dynamix_ps.policy.state import State
from tests.control_plane import record, run_under, view


def agent(workers: int = 3, seed: int = 0, learn: bool = True, **ppo: Any) -> PpoPolicy:
    return make_ppo(Ppo(**ppo), workers, np.random.default_rng(seed), learn=learn)


def state(**changes: Any) -> State:
    values: dict[str, Any] = {
        "local": (),
        "accuracy": 0.6,
        "accuracy_gain": 0.1,
        "iteration_time": 1.2,
        "batch_size": 128,
        "gradient_std": 0.3,
        "gradient_variance": 0.5,
    }
    return State(**(values | changes))


def test_reward_is_the_published_formula() -> None:
    weights = Ppo(alpha=2.0, beta=0.5, delta=0.1, eta=0.25)
    expected = 0.6 + 2.0 * 0.1 - 0.5 * 1.2 - 0.1 * (7 - 5) - 0.25 * (0.5 + 0.3)
    assert reward(state(), weights) == pytest.approx(expected)
    falling = reward(state(accuracy_gain=-0.4), weights)
    assert falling == pytest.approx(expected - 0.2)
    assert reward(state(batch_size=32), Ppo(alpha=0, beta=0, delta=1)) == pytest.approx(0.6)


def test_unknown_and_absurd_quantities_keep_the_reward_finite() -> None:
    unknown = state(
        accuracy=math.nan, accuracy_gain=math.nan, iteration_time=math.nan, gradient_std=math.nan, batch_size=0
    )
    assert reward(unknown, Ppo(delta=0.02)) == pytest.approx(0.1)
    assert reward(state(iteration_time=1e9), Ppo()) == -10
    assert reward(state(accuracy=math.inf), Ppo()) < 1


def test_actions_are_the_five_published_steps_within_the_bounds() -> None:
    policy = agent(workers=200)
    plan = Plan(0, (400,) * 200)
    seen = {size - 400 for size in policy.decide(view(plan, run_under(plan, 0))).batch_sizes}
    assert seen == set(ACTIONS)
    low = agent(workers=200).decide(view(Plan(0, (40,) * 200), run_under(Plan(0, (40,) * 200), 0))).batch_sizes
    assert set(low) == {32, 40, 65, 140}
    high = agent(workers=200).decide(view(Plan(0, (1020,) * 200), run_under(Plan(0, (1020,) * 200), 0))).batch_sizes
    assert set(high) == {920, 995, 1020, 1024}


def test_keeps_the_plan_in_windows_that_are_not_clean() -> None:
    policy, plan = agent(), Plan(4, (100, 200, 300))
    clean = run_under(plan, 0)
    old = [*clean[:2], record(2, plan_version=3)]
    flagged = [*clean[:2], record(2, plan_version=4, flagged=True)]
    for records in (old, flagged, [None, None, None]):
        assert policy.decide(view(plan, records)).batch_sizes == plan.batch_sizes  # type: ignore[arg-type]


def test_an_absent_worker_keeps_its_size_and_the_others_act() -> None:
    plan = Plan(0, (400,) * 40)
    records = run_under(plan, 0)
    records[7] = None
    sizes = agent(workers=40).decide(view(plan, records)).batch_sizes
    assert sizes[7] == 400
    assert len(set(sizes)) > 1


def test_reward_is_credited_to_the_plan_that_asked_for_it() -> None:
    policy, plan = agent(windows_per_update=2), Plan(0, (400, 400, 400))
    first = policy.decide(view(plan, run_under(plan, 0)))
    assert first.reward is None
    asked = Plan(1, first.batch_sizes)
    # the plan is not in force yet, then only partly: nothing is credited, the decision stays open
    waiting = [record(rank, 1, plan_version=0, batch_size=400) for rank in range(3)]
    assert policy.decide(view(asked, waiting)).reward is None  # type: ignore[arg-type]
    mixed = [record(rank, 2, plan_version=1, flagged=True) for rank in range(3)]
    assert policy.decide(view(asked, mixed)).reward is None  # type: ignore[arg-type]
    second = policy.decide(view(asked, run_under(asked, 3)))
    assert second.reward is not None
    # a plan of somebody else: the open decision is dropped
    foreign = Plan(9, (77, 77, 77))
    assert policy.decide(view(foreign, run_under(foreign, 4))).reward is None
    assert not policy.update_due


def drive(policy: PpoPolicy, windows: int, plan: Plan) -> tuple[Plan, list[float]]:
    """A cluster that adopts every plan at once; reward as configured. Updates as they fall due."""
    rewards = []
    for window in range(windows):
        decision = policy.decide(view(plan, run_under(plan, window)))
        rewards += [] if decision.reward is None else [decision.reward]
        if decision.batch_sizes != plan.batch_sizes:
            plan = Plan(plan.version + 1, decision.batch_sizes)
        if policy.update_due:
            assert policy.update()["accepted"] == 1
    return plan, rewards


def test_updates_every_so_many_windows() -> None:
    policy = agent(windows_per_update=4)
    plan, _ = drive(policy, 4, Plan(0, (400, 400, 400)))
    assert not policy.update_due
    policy.decide(view(plan, run_under(plan, 4)))
    assert policy.update_due
    diagnostics = policy.update()
    assert diagnostics["samples"] == 12
    assert diagnostics["updates"] == 1
    assert {"approx_kl", "clip_fraction", "entropy", "explained_variance"} <= diagnostics.keys()
    assert not policy.update_due


def test_learns_online_what_the_reward_says() -> None:
    # only the size penalty counts: small batches are best
    policy = agent(seed=1, alpha=0, beta=0, delta=1, gamma=0.0, learning_rate=5e-3, windows_per_update=8)
    plan, rewards = drive(policy, 240, Plan(0, (500, 500, 500)))
    assert np.mean(rewards[-20:]) > np.mean(rewards[:20]) + 1
    assert max(plan.batch_sizes) <= 157


def test_same_seed_same_decisions() -> None:
    runs = [drive(agent(seed=seed), 12, Plan(0, (300, 300, 300))) for seed in (3, 3, 4)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("workers", [1, 2, 7, 32])
def test_any_number_of_workers(workers: int) -> None:
    drive(agent(workers=workers), 6, Plan(0, (64,) * workers))


def test_without_learning_nothing_changes() -> None:
    policy, plan = agent(learn=False), Plan(0, (400, 400, 400))
    for window in range(10):
        policy.decide(view(plan, run_under(plan, window)))
    assert not policy.update_due
    assert (policy._normaliser.count == 0).all()
