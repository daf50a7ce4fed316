from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamix_ps.config import Ppo
from dynamix_ps.policy.ppo.adam import AdamState
from dynamix_ps.policy.ppo.network import Params, finite, forward, initialise, log_softmax
from dynamix_ps.policy.ppo.normalise import LIMIT, Normaliser
from dynamix_ps.policy.ppo.rollout import Batch
from dynamix_ps.policy.ppo.update import update

ACTIONS = 5


def bandit_round(params: Params, rng: np.random.Generator) -> tuple[Batch, float]:
    """64 one-step games: the first input says which of two actions pays 1."""
    rows = rng.choice([-1.0, 1.0], size=(64, 2)).astype(np.float32)
    result = forward(params, rows)
    log_probs = log_softmax(result.logits)
    draws = rng.random((64, 1))
    actions = np.minimum((draws >= np.exp(log_probs).cumsum(axis=1)).sum(axis=1), ACTIONS - 1)
    rewards = (actions == np.where(rows[:, 0] > 0, 4, 1)).astype(np.float32)
    gains = rewards - result.values
    normal = ((gains - gains.mean()) / (gains.std() + 1e-8)).astype(np.float32)
    return Batch(rows, actions, log_probs[np.arange(64), actions], normal, rewards, result.values), float(
        rewards.mean()
    )


def play(seed: int, rounds: int) -> tuple[Params, list[float]]:
    rng = np.random.default_rng(seed)
    params = initialise(2, 32, ACTIONS, rng)
    adam = AdamState.zero(params)
    ppo = Ppo(learning_rate=3e-3)
    rewards = []
    for _ in range(rounds):
        batch, mean = bandit_round(params, rng)
        rewards.append(mean)
        result = update(params, adam, batch, ppo, rng)
        assert result.accepted
        params, adam = result.params, result.adam
    return params, rewards


def test_learns_a_contextual_bandit() -> None:
    _, rewards = play(seed=5, rounds=80)
    assert np.mean(rewards[:5]) < 0.4
    assert np.mean(rewards[-5:]) > 0.9


def test_same_seed_same_bits() -> None:
    first, _ = play(seed=9, rounds=5)
    second, _ = play(seed=9, rounds=5)
    other, _ = play(seed=10, rounds=5)
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)
    assert any(first[name].tobytes() != other[name].tobytes() for name in first)


def test_diagnostics_of_a_first_pass() -> None:
    rng = np.random.default_rng(0)
    params = initialise(2, 8, ACTIONS, rng)
    batch, _ = bandit_round(params, rng)
    result = update(params, AdamState.zero(params), batch, Ppo(epochs=1, minibatches=1), rng)
    assert result.diagnostics["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert result.diagnostics["clip_fraction"] == 0
    assert result.diagnostics["entropy"] == pytest.approx(math.log(ACTIONS), rel=1e-3)
    assert result.diagnostics["samples"] == 64


@pytest.mark.parametrize("field", ["rows", "advantages", "returns", "log_probs"])
def test_what_is_not_finite_changes_nothing(field: str) -> None:
    rng = np.random.default_rng(0)
    params = initialise(2, 8, ACTIONS, rng)
    batch, _ = bandit_round(params, rng)
    getattr(batch, field)[3] = np.nan
    result = update(params, AdamState.zero(params), batch, Ppo(), rng)
    assert not result.accepted
    assert result.params is params
    assert result.adam.step == 0
    assert finite(result.params)


def test_a_step_that_overflows_the_weights_is_taken_back() -> None:
    rng = np.random.default_rng(0)
    params = initialise(2, 8, ACTIONS, rng)
    batch, _ = bandit_round(params, rng)
    with np.errstate(over="ignore"):
        result = update(params, AdamState.zero(params), batch, Ppo(learning_rate=1e39, epochs=1, minibatches=1), rng)
    assert not result.accepted
    assert result.params is params


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 9), minibatches=st.integers(1, 12), scale=st.sampled_from([0.0, 1.0, 1e6]))
def test_odd_sizes_and_scales_stay_finite(count: int, minibatches: int, scale: float) -> None:
    rng = np.random.default_rng(count)
    params = initialise(2, 8, ACTIONS, rng)
    whole, _ = bandit_round(params, rng)
    batch = whole.take(np.arange(count))
    large = Batch(batch.rows, batch.actions, batch.log_probs, batch.advantages, batch.returns * scale, batch.values)
    result = update(params, AdamState.zero(params), large, Ppo(minibatches=minibatches), rng)
    assert result.accepted
    assert finite(result.params)


def test_normaliser_matches_the_plain_formulas() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(5, 3, (50, 4))
    rows[rng.random((50, 4)) < 0.3] = np.nan
    normaliser = Normaliser.empty(4)
    for part in np.array_split(rows, 7):
        normaliser = normaliser.updated(part)
    np.testing.assert_allclose(normaliser.mean, np.nanmean(rows, axis=0))
    np.testing.assert_allclose(normaliser.spread / normaliser.count, np.nanvar(rows, axis=0))
    known = ~np.isnan(rows)
    result = normaliser.apply(rows)
    expected = np.clip((rows - np.nanmean(rows, axis=0)) / np.nanstd(rows, axis=0), -LIMIT, LIMIT)
    np.testing.assert_allclose(result[:, :4][known], expected[known], rtol=1e-5, atol=1e-6)
    assert (result[:, :4][~known] == 0).all()
    np.testing.assert_array_equal(result[:, 4:], known)


@given(st.lists(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=3, max_size=3), min_size=1, max_size=6))
def test_normaliser_is_always_finite(rows: list[list[float]]) -> None:
    normaliser = Normaliser.empty(3)
    for row in rows:
        normaliser = normaliser.updated(np.array([row]))
        assert np.isfinite(normaliser.apply(np.array([row]))).all()
