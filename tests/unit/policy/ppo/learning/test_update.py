from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamix_ps.policy.ppo.actor_critic import AdamState
from dynamix_ps.policy.ppo.learning.rollout import RolloutBatch
from dynamix_ps.policy.ppo.learning.update import Updated, update
from dynamix_ps.policy.ppo.network import Params, Shape, forward, initialise, log_softmax
from dynamix_ps.policy.ppo.settings import PpoSettings

ACTIONS = 5


def fresh(rng: np.random.Generator, hidden: int = 8) -> Params:
    return initialise(Shape(2, hidden, ACTIONS), rng)


def bandit_round(params: Params, rng: np.random.Generator) -> tuple[RolloutBatch, float]:
    """64 one-step games: the first input says which of two actions pays 1."""
    rows = rng.choice([-1.0, 1.0], size=(64, 2)).astype(np.float32)
    log_probs = log_softmax(forward(params.actor, rows)[-1])
    values = forward(params.critic, rows)[-1][:, 0]
    draws = rng.random((64, 1))
    actions = np.minimum((draws >= np.exp(log_probs).cumsum(axis=1)).sum(axis=1), ACTIONS - 1)
    rewards = (actions == np.where(rows[:, 0] > 0, 4, 1)).astype(np.float32)
    gains = rewards - values
    normal = ((gains - gains.mean()) / (gains.std() + 1e-8)).astype(np.float32)
    batch = RolloutBatch(rows, actions, log_probs[np.arange(64), actions], normal, rewards, values)
    return batch, float(rewards.mean())


def learn(params: Params, batch: RolloutBatch, rng: np.random.Generator, rate: float = 3e-4, **changes: Any) -> Updated:
    return update(params, AdamState.zero(params.flat), batch, PpoSettings(**changes), rate, rng)


def play(seed: int, rounds: int, **changes: Any) -> tuple[Params, list[float]]:
    rng = np.random.default_rng(seed)
    params = fresh(rng, 32)
    adam = AdamState.zero(params.flat)
    rewards = []
    for _ in range(rounds):
        batch, mean = bandit_round(params, rng)
        if changes.get("learner") == "simple":
            batch = dataclasses.replace(batch, advantages=batch.returns)
        rewards.append(mean)
        result = update(params, adam, batch, PpoSettings(**changes), 3e-3, rng)
        assert result.accepted
        params, adam = result.params, result.adam
    return params, rewards


@pytest.mark.parametrize("changes", [{"target_kl": None}, {}, {"learner": "simple"}])
def test_learns_a_contextual_bandit(changes: dict[str, Any]) -> None:
    _, rewards = play(seed=5, rounds=80, **changes)
    assert rewards[0] < 0.4
    assert np.mean(rewards[-5:]) > 0.9


def test_same_seed_same_bits() -> None:
    first, second, other = (play(seed=seed, rounds=5)[0].flat.tobytes() for seed in (9, 9, 10))
    assert first == second
    assert first != other


def test_diagnostics_of_a_first_pass() -> None:
    rng = np.random.default_rng(0)
    params = fresh(rng)
    batch, _ = bandit_round(params, rng)
    found = learn(params, batch, rng, epochs=1, minibatches=1).diagnostics
    assert found["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert found["clip_fraction"] == 0
    assert found["entropy"] == pytest.approx(math.log(ACTIONS), rel=1e-3)
    assert found["samples"] == 64
    assert found["steps"] == 1
    spread = np.var(batch.returns - batch.values) / np.var(batch.returns)
    assert found["explained_variance"] == pytest.approx(1 - spread, rel=1e-5)


def test_the_gradient_is_cut_to_its_largest_norm() -> None:
    rng = np.random.default_rng(0)
    params = fresh(rng)
    batch, _ = bandit_round(params, rng)
    for limit in (1e-3, 1e3):
        result = learn(params, batch, rng, epochs=1, minibatches=1, max_grad_norm=limit)
        norm = result.diagnostics["grad_norm"]
        assert 1e-3 < norm < 1e3
        taken = np.linalg.norm(result.adam.mean) / 0.1  # Adam's mean after one step is a tenth of the gradient
        assert taken == pytest.approx(min(norm, limit), rel=1e-4)


def test_an_update_ends_when_the_policy_has_moved_far_enough() -> None:
    rng = np.random.default_rng(0)
    params = fresh(rng)
    batch, _ = bandit_round(params, rng)
    far = learn(params, batch, rng, rate=3e-2, epochs=50, minibatches=4, target_kl=None).diagnostics
    near = learn(params, batch, rng, rate=3e-2, epochs=50, minibatches=4, target_kl=0.02).diagnostics
    assert far["steps"] == 200
    assert 1 <= near["steps"] < 50
    assert 0.02 < near["approx_kl"] < far["approx_kl"]


@pytest.mark.parametrize("learner", ["clip", "simple"])
@pytest.mark.parametrize("field", ["rows", "advantages", "log_probs"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_changes_nothing(learner: str, field: str, value: float) -> None:
    rng = np.random.default_rng(0)
    params = fresh(rng)
    batch, _ = bandit_round(params, rng)
    getattr(batch, field)[3] = value
    kept, adam = params.flat.copy(), AdamState.zero(params.flat)
    with np.errstate(invalid="ignore"):
        result = update(params, adam, batch, PpoSettings(learner=learner), 3e-4, rng)  # type: ignore[arg-type]
    assert not result.accepted or np.isfinite(result.params.flat).all()
    if math.isnan(value):
        assert not result.accepted
        assert result.params is params
        assert result.adam is adam
    assert adam.step == 0
    np.testing.assert_array_equal(params.flat, kept)


def test_returns_that_are_not_finite_change_nothing() -> None:
    rng = np.random.default_rng(0)
    params = fresh(rng)
    batch, _ = bandit_round(params, rng)
    batch.returns[3] = np.inf
    with np.errstate(invalid="ignore"):
        assert learn(params, batch, rng).params is params


def test_a_step_that_overflows_the_weights_is_taken_back() -> None:
    rng = np.random.default_rng(0)
    params = fresh(rng)
    batch, _ = bandit_round(params, rng)
    with np.errstate(over="ignore", invalid="ignore"):
        result = learn(params, batch, rng, rate=1e39, epochs=1, minibatches=1)
    assert not result.accepted
    assert result.params is params


def test_an_empty_batch_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    params = fresh(rng)
    batch, _ = bandit_round(params, rng)
    result = learn(params, batch.take(np.arange(0)), rng)
    assert not result.accepted
    assert result.params is params


def test_actions_that_are_not_allowed_keep_their_probability_zero_and_the_loss_finite() -> None:
    rng = np.random.default_rng(0)
    params = fresh(rng)
    batch, _ = bandit_round(params, rng)
    allowed = np.zeros((64, ACTIONS), dtype=bool)
    allowed[np.arange(64), batch.actions] = True
    result = learn(params, dataclasses.replace(batch, allowed=allowed, log_probs=np.zeros(64, np.float32)), rng)
    assert result.accepted
    assert result.diagnostics["entropy"] == 0
    for (before, _), (after, _) in zip(params.actor, result.params.actor, strict=True):
        np.testing.assert_array_equal(before, after)  # there was nothing to choose


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 9), minibatches=st.integers(1, 12), scale=st.sampled_from([0.0, 1.0, 1e6]))
def test_odd_sizes_and_scales_stay_finite(count: int, minibatches: int, scale: float) -> None:
    rng = np.random.default_rng(count)
    params = fresh(rng)
    whole, _ = bandit_round(params, rng)
    batch = whole.take(np.arange(count))
    large = dataclasses.replace(batch, returns=batch.returns * np.float32(scale))
    result = learn(params, large, rng, minibatches=minibatches)
    assert result.accepted
    assert np.isfinite(result.params.flat).all()
