"""The unit of rewards, so that learning does not depend on it (reward scaling of arXiv 2005.12729, section 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.policy.ppo.network import Normaliser


class RewardScale:
    """How much discounted returns vary: R_t = gamma * R_(t-1) + r_t of every actor, from 0 in every episode.

    A critic begins near 0 and moves a little with every step. Where returns are large, it is on its way for thousands
    of steps, and what looks like advantages is its error. Normalised, that error drives the policy to one action
    before it has seen a single reward that differs.
    """

    def __init__(self, actors: int, gamma: float) -> None:
        self._gamma = gamma
        self._returns = np.zeros(actors)
        self._seen = Normaliser.empty(1)

    def observe(self, rewards: NDArray[np.floating[Any]], ended: NDArray[np.bool_]) -> None:
        """Count one step of all actors: rewards (N,), and whether the episode ended after it (N,)."""
        self._returns = self._gamma * self._returns + rewards
        self._seen = self._seen.updated(self._returns[:, None])
        self._returns[ended] = 0.0

    @property
    def unit(self) -> float:
        """The standard deviation of all R_t so far, by which rewards are to be divided; 1 if they never differed."""
        deviation = float(np.sqrt(self._seen.spread[0] / max(self._seen.count[0], 1)))
        return deviation if deviation > 0 else 1.0
