from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dynamix_ps.policy.ppo.actor_critic import Acted
from dynamix_ps.policy.ppo.learning.gae import advantages
from dynamix_ps.policy.ppo.learning.rollout import Rollout, RolloutBatch
from dynamix_ps.policy.ppo.settings import PpoSettings


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)[:, None]


def test_hand_computed_table() -> None:
    # gamma = 0.5, lambda = 0.5; d = r + 0.5 V' - V
    #   t   r   V   V'   d                    A
    #   2   3   1   4    3 + 2   - 1 = 4      4
    #   1   0   2   1    0 + 0.5 - 2 = -1.5   -1.5 + 0.25 * 4 = -0.5
    #   0   1   1   2    1 + 1   - 1 = 1      1 + 0.25 * -0.5 = 0.875
    result = advantages(column(1, 0, 3), column(1, 2, 1), column(2, 1, 4), np.ones((3, 1), bool), 0.5, 0.5)
    np.testing.assert_allclose(result[:, 0], [0.875, -0.5, 4])


def test_a_gap_cuts_the_sum() -> None:
    linked = np.array([[True], [False], [True]])
    result = advantages(column(1, 0, 3), column(1, 2, 1), column(2, 1, 4), linked, 0.5, 0.5)
    np.testing.assert_allclose(result[:, 0], [1 + 0.25 * -1.5, -1.5, 4])


def test_actors_do_not_mix() -> None:
    linked = np.array([[True, False], [True, True]])
    rewards = np.array([[1.0, 1.0], [2.0, 2.0]])
    zeros = np.zeros((2, 2))
    result = advantages(rewards, zeros, zeros, linked, 1.0, 1.0)
    np.testing.assert_allclose(result, [[3, 1], [2, 2]])


def collect(settings: PpoSettings, *steps: dict[str, Any], last: float = 4.0) -> RolloutBatch:
    """One actor. A step is value and reward, and where they matter cut, bootstrap, present; t is what it saw."""
    rollout = Rollout(settings)
    for t, step in enumerate(steps):
        acted = Acted(np.full((1, 2), t), np.array([t % 2]), np.array([-0.5]), np.array([step["value"]], np.float32))
        rollout.add(
            acted,
            np.array([step["reward"]]),
            np.array([step.get("cut", False)]),
            np.array([step.get("bootstrap", np.nan)]),
            np.array([step.get("present", True)]),
        )
    assert len(rollout) == len(steps)
    return rollout.batch(np.array([last]))


HALF = PpoSettings(gamma=0.5, gae_lambda=0.5)


def test_batch_of_the_hand_computed_table() -> None:
    batch = collect(HALF, {"value": 1, "reward": 1}, {"value": 2, "reward": 0}, {"value": 1, "reward": 3})
    gains = np.array([0.875, -0.5, 4])
    np.testing.assert_allclose(batch.returns - batch.values, gains)
    np.testing.assert_array_equal(batch.values, [1, 2, 1])
    np.testing.assert_allclose(batch.advantages, (gains - gains.mean()) / gains.std(), rtol=1e-6)
    np.testing.assert_array_equal(batch.rows[:, 0], [0, 1, 2])
    assert batch.advantages.dtype == batch.returns.dtype == batch.values.dtype == np.float32


@pytest.mark.parametrize("bootstrap", [0.0, 6.0])
def test_an_episode_that_ends_uses_its_bootstrap_and_nothing_later(bootstrap: float) -> None:
    end = {"value": 2, "reward": 0, "cut": True, "bootstrap": bootstrap}
    batch = collect(HALF, {"value": 1, "reward": 1}, end, {"value": 1, "reward": 3})
    delta = 0 + 0.5 * bootstrap - 2
    np.testing.assert_allclose(batch.returns - batch.values, [1 + 0.25 * delta, delta, 4])


def test_the_end_of_the_last_step_counts() -> None:
    batch = collect(HALF, {"value": 1, "reward": 3, "cut": True, "bootstrap": 0.0})
    np.testing.assert_allclose(batch.returns, [3])


def test_an_absent_step_is_left_out_and_breaks_off_what_came_before() -> None:
    absent = {"value": 2, "reward": np.nan, "present": False}
    batch = collect(HALF, {"value": 1, "reward": 1}, absent, {"value": 1, "reward": 3})
    assert len(batch) == 2
    np.testing.assert_allclose(batch.returns - batch.values, [1 + 0.5 * 2 - 1, 4])
    np.testing.assert_array_equal(batch.rows[:, 0], [0, 2])


def test_simple_returns_are_discounted_rewards_inside_the_episode() -> None:
    settings = PpoSettings(learner="simple", gamma=0.5)
    end = {"value": 9, "reward": 2, "cut": True, "bootstrap": 7.0}
    batch = collect(settings, {"value": 9, "reward": 1}, end, {"value": 9, "reward": 3}, {"value": 9, "reward": 8})
    np.testing.assert_allclose(batch.returns, [1 + 0.5 * 2, 2, 3 + 0.5 * 8, 8])
    np.testing.assert_array_equal(batch.advantages, batch.returns)


def test_a_single_row_keeps_its_advantage() -> None:
    batch = collect(HALF, {"value": 0, "reward": 3}, last=0.0)
    np.testing.assert_allclose(batch.advantages, [3.0])


def test_batches_can_be_joined() -> None:
    first = collect(HALF, {"value": 1, "reward": 1}, {"value": 2, "reward": 0})
    second = collect(HALF, {"value": 3, "reward": 5})
    both = RolloutBatch.joined([first, second])
    assert len(both) == 3
    for index, one in (([0, 1], first), ([2], second)):
        part = both.take(np.array(index))
        for name in ("rows", "actions", "log_probs", "advantages", "returns", "values"):
            np.testing.assert_array_equal(getattr(part, name), getattr(one, name))
    assert both.allowed is None
