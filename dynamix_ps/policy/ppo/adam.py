"""Adam (arXiv 1412.6980, algorithm 1) and clipping of the gradient's norm, as functions of dicts of arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dynamix_ps.policy.ppo.network import Params

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-5


@dataclass(frozen=True, slots=True)
class AdamState:
    """Steps taken, and the running means of the gradient and of its square."""

    step: int
    mean: Params
    square: Params

    @staticmethod
    def zero(params: Params) -> AdamState:
        return AdamState(
            0,
            {name: np.zeros_like(value) for name, value in params.items()},
            {name: np.zeros_like(value) for name, value in params.items()},
        )


def adam_step(params: Params, gradients: Params, state: AdamState, learning_rate: float) -> tuple[Params, AdamState]:
    """New parameters and state; the old ones stay as they are."""
    step = state.step + 1
    mean = {name: BETA1 * state.mean[name] + (1 - BETA1) * gradients[name] for name in params}
    square = {name: BETA2 * state.square[name] + (1 - BETA2) * gradients[name] ** 2 for name in params}
    rate = learning_rate * (1 - BETA2**step) ** 0.5 / (1 - BETA1**step)
    new = {name: value - rate * mean[name] / (np.sqrt(square[name]) + EPSILON) for name, value in params.items()}
    return new, AdamState(step, mean, square)


def clip_norm(gradients: Params, largest: float) -> tuple[Params, float]:
    """Gradients scaled down so that their joint norm is at most `largest`, and the norm before."""
    norm = float(np.sqrt(sum(float((value.astype(np.float64) ** 2).sum()) for value in gradients.values())))
    if norm <= largest:
        return gradients, norm
    factor = largest / norm
    return {name: value * factor for name, value in gradients.items()}, norm
