from __future__ import annotations

import numpy as np
import pytest

from dynamix_ps.policy.ppo.actor_critic import AdamState
from dynamix_ps.policy.ppo.learning.adam import adam_step, clip_norm
from dynamix_ps.policy.ppo.learning.rollout import RolloutBatch
from dynamix_ps.policy.ppo.learning.update import loss_and_gradient
from dynamix_ps.policy.ppo.network import Params, Shape, forward, initialise, log_softmax, masked
from dynamix_ps.policy.ppo.settings import PpoSettings

SHAPE = Shape(n_inputs=7, hidden=9, n_actions=5)
ROWS = 11


def double(params: Params) -> Params:
    return Params(params.shape, params.flat.astype(np.float64))


def random_batch(rng: np.random.Generator, params: Params, allowed: np.ndarray | None) -> RolloutBatch:
    rows = rng.standard_normal((ROWS, SHAPE.n_inputs))
    actions = np.full(ROWS, 2) if allowed is not None else rng.integers(0, SHAPE.n_actions, ROWS)
    log_probs = log_softmax(masked(forward(params.actor, rows)[-1], allowed))[np.arange(ROWS), actions]
    return RolloutBatch(
        rows=rows,
        actions=actions,
        log_probs=log_probs + np.resize([-0.5, 0.5, 0.1], ROWS),  # ratios above, below and inside the clip range
        advantages=np.resize([1.3, 0.7, 0.4, -0.9, -1.1, -0.6], ROWS),  # each of them with both signs
        returns=rng.standard_normal(ROWS),
        values=rng.standard_normal(ROWS),
        allowed=allowed,
    )


@pytest.mark.parametrize("learner", ["clip", "simple"])
@pytest.mark.parametrize("mask", [False, True])
def test_gradients_agree_with_finite_differences(learner: str, mask: bool) -> None:
    rng = np.random.default_rng(3)
    params = double(initialise(SHAPE, rng))
    params.actor[-1][0][:] *= 100  # away from the uniform start
    allowed = np.array([[True, False, True, True, False]] * ROWS) if mask else None
    batch = random_batch(rng, params, allowed)
    settings = PpoSettings(learner=learner, entropy=0.1, value_weight=0.7)  # type: ignore[arg-type]
    losses, gradient = loss_and_gradient(params, batch, settings)
    assert losses.clip_fraction == pytest.approx(8 / 11)
    assert gradient.dtype == np.float64
    step = 1e-6
    for index, kept in enumerate(params.flat.copy()):
        params.flat[index] = kept + step
        above = loss_and_gradient(params, batch, settings)[0].total
        params.flat[index] = kept - step
        below = loss_and_gradient(params, batch, settings)[0].total
        params.flat[index] = kept
        assert gradient[index] == pytest.approx((above - below) / (2 * step), abs=1e-5), index
    critic = np.concatenate([part.ravel() for layer in Params(SHAPE, gradient).critic for part in layer])
    assert np.any(critic != 0) == (learner == "clip")


def test_every_weight_belongs_to_one_layer() -> None:
    params = Params(SHAPE, np.zeros(SHAPE.size))
    for _, view in params.named():
        np.add(view, 1, out=view)
    np.testing.assert_array_equal(params.flat, 1)
    assert [name for name, _ in params.named()][:3] == ["actor.0.weight", "actor.0.bias", "actor.1.weight"]


def test_first_policy_is_nearly_uniform_and_weights_are_orthogonal() -> None:
    params = initialise(Shape(30, 64, 5), np.random.default_rng(0))
    rows = np.random.default_rng(1).standard_normal((100, 30)).astype(np.float32)
    output = forward(params.actor, rows)[-1]
    assert np.abs(np.exp(log_softmax(output)) - 1 / 5).max() < 0.02
    weight = params.actor[1][0]
    np.testing.assert_allclose(weight.T @ weight, 2 * np.eye(64), atol=1e-5)
    assert params.flat.dtype == output.dtype == np.float32


def test_rows_do_not_influence_each_other() -> None:
    params = double(initialise(SHAPE, np.random.default_rng(0)))
    rows = np.random.default_rng(1).standard_normal((32, SHAPE.n_inputs))
    for layers in (params.actor, params.critic):
        together = forward(layers, rows)[-1]
        for i in (0, 31):
            np.testing.assert_allclose(forward(layers, rows[i : i + 1])[-1][0], together[i], atol=1e-12)


def test_log_softmax_survives_extreme_logits() -> None:
    result = log_softmax(np.array([[1e30, 0.0, -1e30]], dtype=np.float32))
    assert result[0, 0] == 0
    assert not np.isnan(result).any()


def test_adam_is_algorithm_1() -> None:
    weights, state = np.array([1.0, -2.0]), AdamState.zero(np.zeros(2))
    mean, square, expected = np.zeros(2), np.zeros(2), weights.copy()
    for t, gradient in enumerate((np.array([0.5, -30.0]), np.array([-0.1, 4.0]), np.array([0.0, 1.0])), start=1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        expected -= 0.1 * (mean / (1 - 0.9**t)) / (np.sqrt(square / (1 - 0.999**t)) + 1e-5)
        adam_step(weights, gradient, state, 0.1)
        np.testing.assert_allclose(weights, expected, rtol=1e-9)
    assert state.step == 3


def test_clip_norm_scales_down_only() -> None:
    gradient = np.array([3.0, 4.0])
    assert clip_norm(gradient, 1.0) == pytest.approx(5)
    np.testing.assert_allclose(gradient, [0.6, 0.8])
    small = np.array([0.3])
    assert clip_norm(small, 1.0) == pytest.approx(0.3)
    assert small[0] == 0.3
