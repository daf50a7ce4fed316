"""Rewards of a window, for the cluster (...,) and for each worker (..., workers). Pure.

A weight of 0 leaves a term out. A term is 0 where its quantity is unknown. `before` are the sizes before the decision
that set the sizes of the window.

`paper`: DYNAMIX (arXiv 2510.08522, IV-D).
`goodput` (ours): training progress per second, on a log scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import Whole
from dynamix_ps.policy.learned.state import State
from dynamix_ps.policy.model.efficiency import efficiency, finishing
from dynamix_ps.policy.window_arrays import Array, known_or, ratio

SMALLEST_PROGRESS = 1e-3  # of an iteration, relative to a noiseless one; less, or negative progress, counts as this
LARGEST = 10.0  # rewards are cut off here, so that one outlier cannot dominate an update


@dataclass(frozen=True, slots=True)
class PaperReward:
    """A + alpha max(0, dA) - beta T_iter - delta (log2(b) - 5) - eta (var + std), cut off at +-LARGEST.

    A and dA are the mean accuracy of this worker's batches and its gain, T_iter the time in units of the reference
    (first windows), b the batch size (at least 1), var and std the normalised gradient variance and standard deviation.
    eta is for adaptive optimizers. `time` says what T_iter is: the time of an iteration, as the paper's formula says,
    or of a sample of the global batch (a reading of ours).
    """

    alpha: float = 1.0
    beta: float = 0.5
    delta: float = 0.02
    eta: float = 0.0
    time: Literal["per_iteration", "per_sample"] = "per_iteration"

    def of_cluster(self, state: State, before: Whole) -> Array:
        """The mean over the workers that are present."""
        return _mean(self.of_worker(state, before), state.window.present)

    def of_worker(self, state: State, before: Whole) -> Array:
        window = state.window
        gain = np.maximum(0.0, known_or(state.accuracy_gain))
        size = np.log2(np.maximum(window.planned, 1)) - 5
        noise = known_or(state.gradient_variance) + known_or(window.grad_norm_std)
        total = known_or(window.accuracy) + self.alpha * gain - self.delta * size - self.eta * noise
        time = state.iteration_time
        if self.time == "per_sample":
            time = time * ratio(state.reference_size, window.global_batch)
        return _cut(total - self.beta * known_or(time)[..., None])

    def of_share(self, state: State, before: Whole) -> Array:
        """For the choice of the worker's share; the paper has no separate reward for it."""
        return self.of_worker(state, before)


@dataclass(frozen=True, slots=True)
class GoodputReward:
    """Cluster: efficiency * log2(e) + throughput * log2(T_ref / T) - change * |log2 of sizes|.

    e is the progress of one iteration at this global batch, under the learning-rate rule of the job, relative to a
    noiseless one (efficiency.py; the goodput of Pollux, OSDI 2021, is progress per iteration over its time). T is the
    iteration time, T_ref its reference. The change is the mean over workers of |log2(b_new / b_old)|, the
    cost of a switch. Near the end of training, where batches are larger (late_batch.py), e is proportional to B, so
    that samples per second count.

    A worker's share changes neither N nor B, so its reward does without them. The first two terms are replaced by log2
    of the samples per second over those that all workers could compute without waiting. Another term is
    - balance * |t_i - mean t| / mean t: its part in the waiting. t_i is the worker's computing and twice its exposed
    network time, which are equal where all chains are as long (network_times.py).
    """

    efficiency: float = 1.0
    throughput: float = 1.0
    change: float = 0.02
    balance: float = 0.3

    def of_cluster(self, state: State, before: Whole) -> Array:
        window = state.window
        ends = finishing(window)
        samples = window.global_batch / np.maximum(window.reference_batch, 1)
        progress_of = np.where(ends, samples, efficiency(window, window.global_batch, state.noise_scale))
        efficient = np.log2(np.maximum(progress_of, SMALLEST_PROGRESS))
        fast = -np.log2(np.maximum(state.iteration_time, 1e-9))
        progress = self.efficiency * known_or(efficient) + self.throughput * known_or(fast)
        return _cut(progress - self.change * _changed(state, before))

    def of_worker(self, state: State, before: Whole) -> Array:
        """The reward of the cluster, less the worker's own part in the waiting."""
        return _cut(self.of_cluster(state, before)[..., None] - self.balance * _lateness(state))

    def of_share(self, state: State, before: Whole) -> Array:
        window = state.window
        capacity_per_s = np.nansum(state.speed, axis=-1)
        samples_per_s = np.nansum(window.samples, axis=-1) / window.duration_s
        used = np.log2(np.maximum(known_or(ratio(samples_per_s, capacity_per_s), 1.0), 1e-3))
        shared = self.throughput * used - self.change * _changed(state, before)
        return _cut(shared[..., None] - self.balance * _lateness(state))


Reward = PaperReward | GoodputReward


def _changed(state: State, before: Whole) -> Array:
    now = np.maximum(state.window.planned, 1)
    return np.asarray(np.abs(np.log2(now / np.maximum(before, 1))).sum(axis=-1) / np.maximum(state.window.workers, 1))


def _lateness(state: State) -> Array:
    chain_s = state.compute_s + 2 * state.network.exposed_s
    mean_s = _mean(known_or(chain_s), np.isfinite(chain_s))
    return known_or(np.abs(ratio(chain_s, mean_s[..., None]) - 1))


def _mean(values: Array, known: NDArray[np.bool_]) -> Array:
    return np.asarray(np.where(known, values, 0.0).sum(axis=-1) / np.maximum(known.sum(axis=-1), 1))


def _cut(reward: Array) -> Array:
    return np.asarray(np.clip(reward, -LARGEST, LARGEST))
