"""From the name in the cluster file to the policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dynamix_ps.config import Config
from dynamix_ps.policy.base import Policy
from dynamix_ps.policy.ppo.agent import make_ppo
from dynamix_ps.policy.proportional import ProportionalPolicy
from dynamix_ps.policy.static import StaticPolicy


def make_policy(config: Config, n_workers: int, rng: np.random.Generator, resume: Path | None = None) -> Policy:
    """The policy that a configuration asks for.

    Args:
        rng: its only source of random numbers.
        resume: a file that an earlier process of this run saved; it wins over the configured one.

    Raises:
        PolicyError: the policy file is unusable, or the parameters contradict each other.
    """
    if config.policy.name == "static":
        return StaticPolicy(config.policy.sizes or config.initial_sizes())
    if config.policy.name == "proportional":
        return ProportionalPolicy(n_workers)
    return make_ppo(config.policy.ppo, n_workers, rng, learn=config.mode == "adapt", resume=resume)
