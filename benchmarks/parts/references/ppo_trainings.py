"""The tasks of `ppo_reference`, and one training on a task: with our PPO, or with that of stable-baselines3."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from dynamix_ps.policy.ppo.learning.train import TrainConfig, train
from dynamix_ps.policy.ppo.settings import PpoSettings

Episodes = list[tuple[int, float]]  # steps of all environments so far, return


@dataclass(frozen=True, slots=True)
class Task:
    """An environment, and the hyper-parameters with which both learn it.

    By default those that rl-baselines3-zoo publishes for CartPole, but 10 passes over a batch, not 20, and a constant
    clip range.
    """

    environment: str
    normalise: bool  # observations by their running mean and deviation, rewards by the deviation of returns
    minibatches: int
    n_envs: int = 8
    n_steps: int = 32  # of each environment between updates
    learning_rate: float = 1e-3  # at the beginning; it falls to 0 linearly
    gamma: float = 0.98
    gae_lambda: float = 0.8
    epochs: int = 10
    clip: float = 0.2
    entropy: float = 0.0
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    hidden: int = 64

    @property
    def solved_return(self) -> float:
        """The mean return at which gymnasium counts the environment as solved."""
        threshold = gymnasium.spec(self.environment).reward_threshold
        assert threshold is not None
        return threshold

    def make(self) -> gymnasium.Env[Any, Any]:
        return gymnasium.make(self.environment)


CARTPOLE = Task("CartPole-v1", normalise=False, minibatches=1)
ACROBOT = Task("Acrobot-v1", normalise=True, minibatches=4)  # of 64 rows, as stable-baselines3 has by default
TASKS = {task.environment: task for task in (CARTPOLE, ACROBOT)}


def train_ours(task: Task, seed: int, steps: int) -> tuple[float, Episodes]:
    """Train with our PPO: wall seconds, and the episodes in the order of their ends."""
    settings = PpoSettings(
        normalise=task.normalise, hidden=task.hidden, learning_rate=task.learning_rate, gamma=task.gamma,
        gae_lambda=task.gae_lambda, clip=task.clip, entropy=task.entropy, value_weight=task.value_weight,
        max_grad_norm=task.max_grad_norm, target_kl=None, epochs=task.epochs, minibatches=task.minibatches,
    )  # fmt: skip
    config = TrainConfig(settings, task.n_envs, task.n_steps, anneal=True, scale_rewards=task.normalise)
    episodes: Episodes = []
    began_s = time.perf_counter()
    train(task.make, steps, seed, config, lambda so_far, total: episodes.append((so_far, total)))
    return time.perf_counter() - began_s, episodes


def train_baselines(task: Task, seed: int, steps: int) -> tuple[float, Episodes]:
    """Train with PPO of stable-baselines3: wall seconds, and the episodes that its Monitor wrapper recorded."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

    torch.set_num_threads(1)
    began_s = time.perf_counter()
    monitors = [Monitor(task.make()) for _ in range(task.n_envs)]
    envs: VecEnv = DummyVecEnv([lambda monitor=monitor: monitor for monitor in monitors])  # type: ignore[misc]
    PPO(
        "MlpPolicy",
        VecNormalize(envs, gamma=task.gamma) if task.normalise else envs,
        learning_rate=lambda left: left * task.learning_rate,
        n_steps=task.n_steps,
        batch_size=task.n_envs * task.n_steps // task.minibatches,
        n_epochs=task.epochs,
        gamma=task.gamma,
        gae_lambda=task.gae_lambda,
        clip_range=task.clip,
        ent_coef=task.entropy,
        vf_coef=task.value_weight,
        max_grad_norm=task.max_grad_norm,
        policy_kwargs={"net_arch": [task.hidden, task.hidden]},
        seed=seed,
        device="cpu",
    ).learn(steps)
    wall_s = time.perf_counter() - began_s
    ends = [np.cumsum(monitor.get_episode_lengths()) * task.n_envs for monitor in monitors]
    episodes = zip(np.concatenate(ends), np.concatenate([m.get_episode_rewards() for m in monitors]), strict=True)
    return wall_s, sorted((int(end), float(total)) for end, total in episodes)


LEARNERS = {"dynamix": train_ours, "stable-baselines3": train_baselines}
