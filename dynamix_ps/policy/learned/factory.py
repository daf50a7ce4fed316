"""Builds the learned policy of a cluster file, with its safety net."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dynamix_ps.config.schema import Config
from dynamix_ps.policy.base import Policy
from dynamix_ps.policy.learned.policy import make_ppo
from dynamix_ps.policy.learned.safety_net import SafetyNet


def learned_policy(
    config: Config, n_workers: int, rng: np.random.Generator, resume: Path | None, effects: bool = True
) -> Policy:
    """The policy `ppo`, with its safety net unless the file turns it off. Raises PolicyError.

    Args:
        effects: whether its model looks for recurring work and for tiles; a study switches that off.
    """
    chosen = config.policy
    learned = make_ppo(chosen.ppo, n_workers, rng, learn=config.mode == "adapt", resume=resume, effects=effects)
    return SafetyNet(learned, chosen.safety) if chosen.safety.enabled else learned
