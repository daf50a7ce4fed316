"""The simulated cluster as a gymnasium environment, for agents of other libraries."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import dynamix_ps.sim.training.gym_env  # noqa: F401 - registers the environment
from dynamix_ps.policy.learned.paper import PAPER_STEPS
from dynamix_ps.policy.learned.structured import (
    BATCH_STEPS,
    SHARE_STEPS,
)


@pytest.mark.parametrize("given", [{"scenario": "h-level-4"}, {"space": "paper", "n_workers": 3}, {"n_workers": 1}])
@pytest.mark.filterwarnings("error")
def test_gymnasium_has_nothing_to_complain_about(given: dict[str, object]):
    check_env(gymnasium.make("dynamix/Cluster-v0", **given).unwrapped)


@pytest.mark.slow
def test_a_sensible_agent_reaches_the_target_and_its_reward_tells_so():
    env = gymnasium.make("dynamix/Cluster-v0", scenario="h-level-8")
    rewards = {}
    for step in (0.0, -1.0):
        action = np.array([BATCH_STEPS.index(step), *[SHARE_STEPS.index(0.0)] * 8])
        env.reset(seed=0)
        seen, terminated, truncated = [], False, False
        while not terminated and len(seen) < 300:
            _, reward, terminated, truncated, info = env.step(action)
            seen.append(reward)
        assert terminated == (step == 0.0) and not truncated
        assert info["sizes"].max() in info["sizes"][6:]  # the fast ones
        rewards[step] = np.mean(seen[:100])
    assert rewards[0.0] > rewards[-1.0]


def test_a_run_is_truncated_when_its_windows_are_over():
    env = gymnasium.make("dynamix/Cluster-v0", space="paper", n_workers=2).unwrapped
    env.reset(seed=0)
    env._simulator.parameters.max_windows[:] = 3  # type: ignore[attr-defined]
    down = np.full(2, PAPER_STEPS.index(-100))
    ends = [env.step(down)[2:4] for _ in range(2)]
    assert ends == [(False, False), (False, True)]
