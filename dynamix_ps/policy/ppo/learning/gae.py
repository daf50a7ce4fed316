"""Generalised advantage estimation (arXiv 1506.02438, equation 16) over several actors at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def advantages(
    rewards: NDArray[np.floating[Any]],
    values: NDArray[np.floating[Any]],
    next_values: NDArray[np.floating[Any]],
    linked: NDArray[np.bool_],
    gamma: float,
    gae_lambda: float,
) -> NDArray[np.float64]:
    """A_t = d_t + gamma * lambda * A_(t+1) with d_t = r_t + gamma * V(s_(t+1)) - V(s_t); all shaped (steps, actors).

    `linked[t]` says that step t+1 of that actor starts where step t ended. If it does not (an episode ended, a
    step is missing), the sum ends there and `next_values[t]` alone stands for the rest. `linked` of the last step is
    not read.
    """
    deltas = rewards + gamma * next_values - values
    result = np.empty(rewards.shape, dtype=np.float64)
    carried = np.zeros(rewards.shape[1], dtype=np.float64)
    for step in reversed(range(len(rewards))):
        if step + 1 < len(rewards):
            carried = np.where(linked[step], carried, 0.0)
        carried = deltas[step] + gamma * gae_lambda * carried
        result[step] = carried
    return result
