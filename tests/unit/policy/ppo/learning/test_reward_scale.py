from __future__ import annotations

import numpy as np
import pytest

from dynamix_ps.policy.ppo.learning.reward_scale import RewardScale


def test_the_unit_is_the_deviation_of_discounted_returns() -> None:
    # gamma = 1/2; actor 0: 2, then 1 + 2/2 = 2, its episode ends, then 4; actor 1: 0, then 6, then 8 + 6/2 = 11
    scale = RewardScale(2, 0.5)
    scale.observe(np.array([2.0, 0.0]), np.array([False, False]))
    scale.observe(np.array([1.0, 6.0]), np.array([True, False]))
    scale.observe(np.array([4.0, 8.0]), np.array([False, False]))
    assert scale.unit == pytest.approx(np.std([2, 0, 2, 6, 4, 11]))


def test_a_step_that_ends_an_episode_still_counts() -> None:
    scale = RewardScale(2, 0.9)
    scale.observe(np.array([1.0, 3.0]), np.array([True, True]))
    assert scale.unit == pytest.approx(1.0)
    scale.observe(np.array([1.0, 3.0]), np.array([True, True]))
    assert scale.unit == pytest.approx(1.0)  # 1, 3, 1, 3: nothing is carried over


@pytest.mark.parametrize("reward", [0.0, -1.0])
def test_what_never_varied_has_no_scale(reward: float) -> None:
    scale = RewardScale(3, 0.9)
    assert scale.unit == 1.0
    scale.observe(np.full(3, reward), np.ones(3, dtype=bool))
    scale.observe(np.full(3, reward), np.ones(3, dtype=bool))
    assert scale.unit == 1.0


def test_rewards_stay_as_they_are() -> None:
    rewards = np.array([1.0, 2.0])
    RewardScale(2, 0.9).observe(rewards, np.array([True, False]))
    np.testing.assert_array_equal(rewards, [1.0, 2.0])
