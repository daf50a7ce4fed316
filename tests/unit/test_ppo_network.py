from __future__ import annotations

import numpy as np
import pytest

from dynamix_ps.config import Ppo
from dynamix_ps.policy.ppo.adam import AdamState, adam_step, clip_norm
from dynamix_ps.policy.ppo.network import Params, forward, initialise, log_softmax
from dynamix_ps.policy.ppo.rollout import Batch
from dynamix_ps.policy.ppo.update import loss_and_gradients

INPUTS, HIDDEN, ACTIONS, ROWS = 7, 9, 5, 11


def double(params: Params) -> Params:
    return {name: value.astype(np.float64) for name, value in params.items()}


def random_batch(rng: np.random.Generator, params: Params) -> Batch:
    rows = rng.standard_normal((ROWS, INPUTS))
    actions = rng.integers(0, ACTIONS, ROWS)
    log_probs = log_softmax(forward(params, rows).logits)[np.arange(ROWS), actions]
    return Batch(
        rows=rows,
        actions=actions,
        log_probs=log_probs + np.resize([-0.5, 0.5, 0.1], ROWS),  # ratios above, below and inside the clip range
        advantages=np.resize([1.3, 0.7, 0.4, -0.9, -1.1, -0.6], ROWS),  # each of them with both signs
        returns=rng.standard_normal(ROWS),
        values=rng.standard_normal(ROWS),
    )


def test_gradients_agree_with_finite_differences() -> None:
    rng = np.random.default_rng(3)
    params = double(initialise(INPUTS, HIDDEN, ACTIONS, rng))
    params["actor.2.weight"] *= 100  # away from the uniform start
    batch, ppo = random_batch(rng, params), Ppo(entropy=0.1, value_weight=0.7)
    losses, gradients = loss_and_gradients(params, batch, ppo)
    assert losses.clip_fraction == pytest.approx(8 / 11)
    step = 1e-6
    for name, value in params.items():
        for index in np.ndindex(value.shape):
            kept = value[index]
            value[index] = kept + step
            above = loss_and_gradients(params, batch, ppo)[0].total
            value[index] = kept - step
            below = loss_and_gradients(params, batch, ppo)[0].total
            value[index] = kept
            assert gradients[name][index] == pytest.approx((above - below) / (2 * step), abs=1e-5), (name, index)


def test_first_policy_is_nearly_uniform_and_weights_are_orthogonal() -> None:
    params = initialise(30, 64, ACTIONS, np.random.default_rng(0))
    rows = np.random.default_rng(1).standard_normal((100, 30)).astype(np.float32)
    probabilities = np.exp(log_softmax(forward(params, rows).logits))
    assert np.abs(probabilities - 1 / ACTIONS).max() < 0.02
    weight = params["actor.1.weight"]
    np.testing.assert_allclose(weight.T @ weight, 2 * np.eye(64), atol=1e-5)
    assert all(value.dtype == np.float32 for value in params.values())


def test_rows_do_not_influence_each_other() -> None:
    params = double(initialise(INPUTS, HIDDEN, ACTIONS, np.random.default_rng(0)))
    rows = np.random.default_rng(1).standard_normal((32, INPUTS))
    together = forward(params, rows)
    for i in (0, 31):
        alone = forward(params, rows[i : i + 1])
        np.testing.assert_allclose(alone.logits[0], together.logits[i], atol=1e-12)
        np.testing.assert_allclose(alone.values[0], together.values[i], atol=1e-12)


def test_log_softmax_survives_extreme_logits() -> None:
    result = log_softmax(np.array([[1e30, 0.0, -1e30]], dtype=np.float32))
    assert result[0, 0] == 0
    assert not np.isnan(result).any()


def test_adam_first_step_is_the_learning_rate_and_keeps_its_arguments() -> None:
    params: Params = {"w": np.array([1.0, -2.0])}
    state = AdamState.zero(params)
    new, after = adam_step(params, {"w": np.array([0.5, -30.0])}, state, 0.1)
    np.testing.assert_allclose(new["w"], [0.9, -1.9], rtol=1e-2)
    assert after.step == 1
    assert state.step == 0
    np.testing.assert_array_equal(params["w"], [1.0, -2.0])


def test_clip_norm_scales_all_parts_together() -> None:
    clipped, norm = clip_norm({"a": np.array([3.0]), "b": np.array([4.0])}, 1.0)
    assert norm == pytest.approx(5)
    np.testing.assert_allclose([clipped["a"][0], clipped["b"][0]], [0.6, 0.8])
    same, _ = clip_norm({"a": np.array([0.3])}, 1.0)
    assert same["a"][0] == 0.3
