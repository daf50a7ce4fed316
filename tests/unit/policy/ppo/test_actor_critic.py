from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamix_ps.errors import PolicyError
from dynamix_ps.policy.ppo.actor_critic import ActorCritic, Weights
from dynamix_ps.policy.ppo.learning.rollout import Rollout, RolloutBatch
from dynamix_ps.policy.ppo.learning.update import learn
from dynamix_ps.policy.ppo.network import log_softmax
from dynamix_ps.policy.ppo.settings import PpoSettings

FEATURES, ACTIONS = 3, 4


def agent(seed: int = 0, **changes: object) -> ActorCritic:
    return ActorCritic.fresh(FEATURES, ACTIONS, PpoSettings(**changes), np.random.default_rng(seed))  # type: ignore[arg-type]


def observations(n: int, seed: int = 1) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(100, 9, (n, FEATURES))
    rows[::3, 1] = np.nan
    return rows


def collect(acting: ActorCritic, steps: int = 8, n: int = 6) -> RolloutBatch:
    """Action 2 pays."""
    rollout, everyone = Rollout(PpoSettings()), np.ones(n, dtype=bool)
    for step in range(steps):
        acted = acting.act(observations(n, step), explore=True, learn_normaliser=True)
        rollout.add(acted, (acted.actions == 2) * 1.0, ~everyone, np.zeros(n), everyone)
    return rollout.batch(acting.values(observations(n, steps)))


def test_first_policy_draws_all_actions_alike_and_greedy_does_not_draw() -> None:
    acting, rows = agent(), observations(4000)
    acted = acting.act(rows, explore=True, learn_normaliser=True)
    counts = np.bincount(acted.actions, minlength=ACTIONS)
    assert (np.abs(counts - 1000) < 120).all()
    np.testing.assert_allclose(acted.log_probs, math.log(1 / ACTIONS), atol=0.1)
    assert acted.rows.shape == (4000, 2 * FEATURES)
    assert acted.rows.dtype == acted.log_probs.dtype == acted.values.dtype == np.float32
    greedy = [acting.act(rows, explore=False) for _ in range(2)]
    np.testing.assert_array_equal(greedy[0].actions, greedy[1].actions)
    assert (greedy[0].log_probs >= acted.log_probs).all()


def test_log_probs_are_those_of_the_actions_drawn() -> None:
    acting = agent()
    acting.weights.params.actor[-1][1][:] = [0.0, 2.0, 1.0, -1.0]
    acted = acting.act(observations(3000), explore=True)
    expected = log_softmax(np.array([[0.0, 2.0, 1.0, -1.0]]))[0]
    np.testing.assert_allclose(acted.log_probs, expected[acted.actions], atol=0.1)
    np.testing.assert_allclose(np.bincount(acted.actions) / 3000, np.exp(expected), atol=0.03)


@pytest.mark.parametrize("explore", [True, False])
def test_only_allowed_actions_are_chosen(explore: bool) -> None:
    allowed = np.random.default_rng(0).random((500, ACTIONS)) < 0.4
    allowed[:, 1] |= ~allowed.any(axis=1)
    acted = agent().act(observations(500), explore=explore, allowed=allowed)
    assert allowed[np.arange(500), acted.actions].all()
    single = allowed.sum(axis=1) == 1
    np.testing.assert_array_equal(acted.log_probs[single], 0)
    assert acted.allowed is allowed


def test_a_mask_that_allows_nothing_is_refused() -> None:
    allowed = np.array([[True] * ACTIONS, [False] * ACTIONS])
    with pytest.raises(PolicyError, match="expected at least one"):
        agent().act(observations(2), explore=False, allowed=allowed)


def test_normaliser_learns_only_when_told() -> None:
    acting = agent()
    acting.act(observations(5), explore=True)
    acting.values(observations(5))
    assert acting.weights.normaliser is not None
    assert (acting.weights.normaliser.count == 0).all()
    acting.act(observations(6), explore=True, learn_normaliser=True)
    np.testing.assert_array_equal(acting.weights.normaliser.count, [6, 4, 6])


def test_without_normaliser_observations_are_used_as_they_are() -> None:
    acting = agent(normalise=False)
    rows = np.ones((2, FEATURES))
    np.testing.assert_array_equal(acting.act(rows, explore=False, learn_normaliser=True).rows, rows)
    rows[1, 1] = np.nan
    with pytest.raises(PolicyError, match="expected finite"):
        acting.act(rows, explore=False)
    with pytest.raises(PolicyError, match="expected finite"):
        acting.values(rows)


def test_simple_has_no_critic() -> None:
    acting = agent(learner="simple")
    np.testing.assert_array_equal(acting.values(observations(4)), 0)
    np.testing.assert_array_equal(acting.act(observations(4), explore=True).values, 0)


def test_learns_and_goes_on_with_the_same_bits() -> None:
    runs = []
    for seed in (3, 3, 4):
        acting = agent(seed, learning_rate=3e-3)
        first = acting.act(observations(200), explore=True).log_probs
        for _ in range(12):
            found = learn(acting, collect(acting))
            assert found["accepted"] == 1
        assert (acting.act(observations(200), explore=False).actions == 2).all()
        assert first.min() > math.log(0.2)
        runs.append(acting.weights.params.flat.tobytes())
    assert runs[0] == runs[1] != runs[2]


def test_a_refused_update_keeps_weights_and_adam() -> None:
    acting = agent()
    batch = collect(acting)
    before = acting.weights
    batch.rows[5] = np.nan
    assert learn(acting, batch)["accepted"] == 0
    assert acting.weights.params is before.params
    assert acting.weights.adam is before.adam


def test_learning_rate_can_be_given() -> None:
    acting = agent()
    batch = collect(acting)
    before = acting.weights.params.flat
    assert learn(acting, batch, learning_rate=0.0)["accepted"] == 1
    np.testing.assert_array_equal(acting.weights.params.flat, before)
    learn(acting, batch)
    assert np.abs(acting.weights.params.flat - before).max() > 1e-5


def test_weights_without_adam_can_be_trained_on() -> None:
    stored = agent().weights
    settings = PpoSettings(epochs=4, minibatches=4)
    acting = ActorCritic(Weights(stored.params, None, stored.normaliser), settings, np.random.default_rng(0))
    learn(acting, collect(acting))
    assert acting.weights.adam is not None
    assert acting.weights.adam.step == 16


def test_a_copy_learns_in_another_thread_while_the_agent_acts_on() -> None:
    acting = agent()
    batch = collect(acting)
    learned, before = acting.copy(), acting.weights.params.flat.copy()
    thread = threading.Thread(target=learn, args=(learned, batch))
    thread.start()
    acting.act(observations(10), explore=True, learn_normaliser=True)
    thread.join(timeout=30)
    np.testing.assert_array_equal(acting.weights.params.flat, before)
    normaliser = acting.weights.normaliser
    acting.adopt(learned)
    assert acting.weights.params is learned.weights.params
    assert acting.weights.adam is learned.weights.adam
    assert acting.weights.normaliser is normaliser


def test_copies_draw_numbers_of_their_own() -> None:
    acting, twin = agent(), agent()
    first, second = (acting.copy().act(observations(50), explore=True).actions for _ in range(2))
    assert (first != second).any()
    after = [one.act(observations(50), explore=True).actions for one in (acting, twin)]
    np.testing.assert_array_equal(after[0], after[1])


def test_masks_come_along_into_the_batch() -> None:
    acting, rollout = agent(), Rollout(PpoSettings())
    masks = [np.array([[True, False, True, True], [False, True, step == 0, True]]) for step in range(2)]
    present = np.array([True, False])
    for mask in masks:
        acted = acting.act(observations(2), explore=True, allowed=mask)
        rollout.add(acted, np.ones(2), ~present, np.zeros(2), present)
    rollout.add(acted, np.ones(2), present, np.zeros(2), ~present)
    allowed = rollout.batch(np.zeros(2)).allowed
    assert allowed is not None
    np.testing.assert_array_equal(allowed, [masks[0][0], masks[1][0], masks[1][1]])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.floats() | st.just(math.nan), min_size=FEATURES, max_size=FEATURES), min_size=1, max_size=5),
    st.data(),
)
def test_any_observations_and_masks_give_allowed_actions_and_finite_weights(
    rows: list[list[float]], data: st.DataObject
) -> None:
    n = len(rows)
    flags = st.lists(st.booleans(), min_size=ACTIONS, max_size=ACTIONS).filter(any)
    allowed = np.array(data.draw(st.lists(flags, min_size=n, max_size=n)))
    present = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    acting, rollout = agent(), Rollout(PpoSettings())
    with np.errstate(all="raise", under="ignore"):
        for seen in (np.array(rows), -np.array(rows)):
            acted = acting.act(seen, explore=True, learn_normaliser=True, allowed=allowed)
            assert allowed[np.arange(n), acted.actions].all()
            assert np.isfinite(acted.rows).all()
            assert np.isfinite(acted.log_probs).all()
            assert np.isfinite(acted.values).all()
            rewards = np.where(present, 1.0, math.nan)
            rollout.add(acted, rewards, ~present, np.zeros(n), present)
        found = learn(acting, rollout.batch(acting.values(np.array(rows))))
    assert found["accepted"] == float(present.any())
    assert np.isfinite(acting.weights.params.flat).all()
