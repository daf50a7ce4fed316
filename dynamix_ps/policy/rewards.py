"""What a window was worth. Pure; one reward per worker, shape (..., workers). A weight of 0 leaves a term out.

`paper`: DYNAMIX (arXiv 2510.08522, IV-D).
`goodput` (ours): training progress per second, on a log scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dynamix_ps.policy.apportion import Whole
from dynamix_ps.policy.features import ratio
from dynamix_ps.policy.state import State
from dynamix_ps.policy.window_arrays import Array

LARGEST = 10.0  # rewards are cut off here, so that one outlier cannot dominate an update


@dataclass(frozen=True, slots=True)
class PaperReward:
    """A + alpha max(0, dA) - beta T_iter - delta (log2(b) - 5) - eta (var + std), cut off at +-LARGEST.

    A and dA are the mean accuracy of this worker's batches and its gain, T_iter the iteration time in units of
    the reference (first windows), b the batch size (at least 1), var and std the normalised gradient variance
    and standard deviation. eta is for adaptive optimizers. A term whose quantity is unknown is 0.
    """

    alpha: float = 1.0
    beta: float = 0.5
    delta: float = 0.02
    eta: float = 0.0

    def __call__(self, state: State, before: Whole) -> Array:
        """`before`: sizes before the decision, which this reward does not look at."""
        window = state.window
        gain = np.maximum(0.0, np.nan_to_num(state.accuracy_gain))
        size = np.log2(np.maximum(window.planned, 1)) - 5
        noise = np.nan_to_num(state.gradient_variance) + np.nan_to_num(window.grad_norm_std)
        total = np.nan_to_num(window.accuracy) + self.alpha * gain - self.delta * size - self.eta * noise
        total = total - self.beta * np.nan_to_num(state.iteration_time)[..., None]
        return np.clip(total, -LARGEST, LARGEST)


@dataclass(frozen=True, slots=True)
class GoodputReward:
    """efficiency * log2(e) + throughput * log2(T_ref / T) - change * |log2 of sizes| - balance * lateness.

    e = 1 / (1 + N/B) is the progress of one iteration relative to a noiseless one, N the gradient noise scale
    (arXiv 1812.06162, eq. 2.7; the goodput of Pollux, OSDI 2021, is progress per iteration over its time). T is the
    iteration time, T_ref its reference. The change is the mean over workers of |log2(b_new / b_old)|: what a switch costs. Lateness is per
    worker: |t_i - mean t| / mean t of the computing times, which tells each worker its own part in the waiting.
    A term whose quantity is unknown is 0.
    """

    efficiency: float = 1.0
    throughput: float = 1.0
    change: float = 0.02
    balance: float = 0.5

    def __call__(self, state: State, before: Whole) -> Array:
        """`before`: sizes before the decision that this window ran under."""
        window = state.window
        noise = ratio(state.noise_scale, np.maximum(window.global_batch, 1))
        efficient = -np.log2(1 + noise)
        fast = -np.log2(np.maximum(state.iteration_time, 1e-9))
        changed = np.abs(np.log2(np.maximum(window.planned, 1) / np.maximum(before, 1))).mean(axis=-1)
        known = np.isfinite(window.compute_s)
        mean_s = np.where(known, window.compute_s, 0.0).sum(axis=-1) / np.maximum(known.sum(axis=-1), 1)
        late = np.abs(ratio(window.compute_s, mean_s[..., None]) - 1)
        shared = self.efficiency * np.nan_to_num(efficient) + self.throughput * np.nan_to_num(fast)
        total = (shared - self.change * changed)[..., None] - self.balance * np.nan_to_num(late)
        return np.clip(total, -LARGEST, LARGEST)


Reward = PaperReward | GoodputReward
