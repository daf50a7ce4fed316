"""PPO on any gymnasium environment with a discrete action and a box of observations.

import gymnasium
from dynamix_ps.policy.ppo.learning.train import train

agent = train(lambda: gymnasium.make("CartPole-v1"), total_steps=200_000, seed=0)
action = agent.act(observation[None], explore=False).actions[0]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from dynamix_ps.errors import PolicyError
from dynamix_ps.policy.ppo.actor_critic import ActorCritic
from dynamix_ps.policy.ppo.learning.reward_scale import RewardScale
from dynamix_ps.policy.ppo.learning.rollout import Rollout, RolloutBatch
from dynamix_ps.policy.ppo.learning.update import learn
from dynamix_ps.policy.ppo.settings import PpoSettings

Env = gymnasium.Env[Any, Any]


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How to train: the learner's settings and how many steps it takes between updates."""

    settings: PpoSettings = field(default_factory=PpoSettings)
    n_envs: int = 8  # environments in parallel
    n_steps: int = 128  # steps of each environment between updates
    anneal: bool = True  # the learning rate falls to 0 linearly
    scale_rewards: bool = True  # divide them by how much discounted returns vary: their unit has no effect then


def train(
    env_fn: Callable[[], Env],
    total_steps: int,
    seed: int,
    config: TrainConfig | None = None,
    on_episode: Callable[[int, float], None] | None = None,
) -> ActorCritic:
    """Train an agent. The same arguments give the same bits if the environments are deterministic.

    Args:
        env_fn: makes one environment; called `config.n_envs` times.
        total_steps: of all environments together, rounded up to whole rollouts.
        config: None: the defaults. With `scale_rewards` the critic's values are scaled as the rewards are.
        on_episode: called at the end of every episode with the number of steps so far and the episode's return.

    Raises:
        PolicyError: a space has the wrong kind, or an observation is not finite and the settings do not normalise.
    """
    config = config or TrainConfig()
    settings, rng = config.settings, np.random.default_rng(seed)
    envs = _Environments(env_fn, config.n_envs, rng, on_episode)
    try:
        agent = ActorCritic.fresh(envs.observations.shape[1], envs.n_actions, settings, rng)
        scale = RewardScale(config.n_envs, settings.gamma)
        while envs.steps < total_steps:
            left = 1 - envs.steps / total_steps if config.anneal else 1.0
            learn(agent, _collect(agent, envs, scale, config), settings.learning_rate * left)
    finally:
        envs.close()
    return agent


def _collect(agent: ActorCritic, envs: _Environments, scale: RewardScale, config: TrainConfig) -> RolloutBatch:
    rollout = Rollout(config.settings)
    everyone = np.ones(config.n_envs, dtype=np.bool_)
    for _ in range(config.n_steps):
        acted = agent.act(envs.observations, explore=True, learn_normaliser=True)
        rewards, ended, broken_off = envs.step(acted.actions)
        scale.observe(rewards, ended)
        bootstrap = np.zeros(config.n_envs, dtype=np.float32)
        for number, last in broken_off.items():
            bootstrap[number] = agent.values(last[None])[0]
        rollout.add(acted, rewards, ended, bootstrap, everyone)
    return rollout.batch(agent.values(envs.observations), scale.unit if config.scale_rewards else 1.0)


class _Environments:
    """Several environments in parallel; each restarts as soon as its episode ends."""

    def __init__(
        self,
        env_fn: Callable[[], Env],
        count: int,
        rng: np.random.Generator,
        on_episode: Callable[[int, float], None] | None,
    ) -> None:
        self._envs = [env_fn() for _ in range(count)]
        actions, observations = self._envs[0].action_space, self._envs[0].observation_space
        if not isinstance(actions, Discrete) or not isinstance(observations, Box):
            self.close()
            raise PolicyError(
                f"the environment has actions {actions} and observations {observations}, expected Discrete and Box; "
                "wrap it"
            )
        self.n_actions, self._first_action = int(actions.n), int(actions.start)
        self.observations = np.stack([_flat(env.reset(seed=int(rng.integers(2**31)))[0]) for env in self._envs])
        self.steps = 0
        self._returns = np.zeros(count)
        self._on_episode = on_episode

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], dict[int, NDArray[np.floating[Any]]]]:
        """Rewards, which episodes ended, and the last observations of the truncated ones."""
        count = len(self._envs)
        rewards, ended = np.zeros(count), np.zeros(count, dtype=np.bool_)
        broken_off = {}
        for number, (env, action) in enumerate(zip(self._envs, actions.tolist(), strict=True)):
            observation, reward, terminated, truncated, _ = env.step(self._first_action + action)
            rewards[number] = reward
            if terminated or truncated:
                ended[number] = True
                if not terminated:
                    broken_off[number] = _flat(observation)
                observation, _ = env.reset()
            self.observations[number] = _flat(observation)
        self.steps += count
        self._returns += rewards
        for number in np.flatnonzero(ended).tolist():
            if self._on_episode is not None:
                self._on_episode(self.steps, float(self._returns[number]))
            self._returns[number] = 0.0
        return rewards, ended, broken_off

    def close(self) -> None:
        for env in self._envs:
            env.close()


def _flat(observation: Any) -> NDArray[np.floating[Any]]:
    return np.asarray(observation, dtype=np.float32).reshape(-1)
