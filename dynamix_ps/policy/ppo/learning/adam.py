"""Adam (arXiv 1412.6980, algorithm 1) and clipping of the gradient's norm."""

from __future__ import annotations

import math

import numpy as np

from dynamix_ps.policy.ppo.actor_critic import AdamState
from dynamix_ps.policy.ppo.network import Array

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-5


def adam_step(weights: Array, gradient: Array, state: AdamState, learning_rate: float) -> None:
    """Take one step: changes the weights and the state in place."""
    state.step += 1
    state.mean += (1 - BETA1) * (gradient - state.mean)
    state.square += (1 - BETA2) * (gradient * gradient - state.square)
    scale = state.square / (1 - BETA2**state.step)
    np.sqrt(scale, out=scale)
    scale += EPSILON
    weights -= learning_rate / (1 - BETA1**state.step) * state.mean / scale


def clip_norm(gradient: Array, largest: float) -> float:
    """Scale the gradient in place so that its norm is at most `largest`; returns the norm before scaling."""
    norm = math.sqrt(float(gradient @ gradient))
    if norm > largest:
        gradient *= largest / norm
    return norm
