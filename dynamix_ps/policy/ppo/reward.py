"""The reward of DYNAMIX (arXiv 2510.08522, IV-D) for one worker and one window."""

from __future__ import annotations

import math

from dynamix_ps.config import Ppo
from dynamix_ps.policy.state import State

LARGEST = 10.0  # rewards are cut off here, so that one outlier cannot dominate an update


def reward(state: State, weights: Ppo) -> float:
    """A + alpha max(0, dA) - beta T_iter - delta (log2(b) - 5) - eta (var + std), clipped to +-LARGEST.

    A and dA are the mean accuracy of this worker's batches and its gain, T_iter the iteration time in units of
    the reference (first windows), b the batch size (at least 1), var and std the normalised gradient variance
    and standard deviation. eta is for adaptive optimizers. A term whose quantity is unknown is 0.
    """
    total = (
        _known(state.accuracy)
        + weights.alpha * max(0.0, _known(state.accuracy_gain))
        - weights.beta * _known(state.iteration_time)
        - weights.delta * (math.log2(max(state.batch_size, 1)) - 5)
        - weights.eta * (_known(state.gradient_variance) + _known(state.gradient_std))
    )
    return min(max(total, -LARGEST), LARGEST)


def _known(value: float) -> float:
    return value if math.isfinite(value) else 0.0
