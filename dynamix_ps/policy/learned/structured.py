"""The structured action space: the size of the global batch and its split are separate decisions. Chosen by us.

One decision multiplies the global batch B that the model of the cluster advises. One per worker multiplies
its share of the split with which, by the same model, all workers finish together. The action 0 follows the model, as
the policy `model` does; the networks learn where the model errs. Factors work at any scale, from 32 samples to millions
of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import Whole
from dynamix_ps.policy.learned.agent import Act, LearnedAgent
from dynamix_ps.policy.learned.features import LOCAL
from dynamix_ps.policy.learned.rewards import Reward
from dynamix_ps.policy.learned.state import State
from dynamix_ps.policy.model.advice import Advisor, SplitModel, advised_batch, balanced_sizes, total_within
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.ppo.actor_critic import ActorCritic
from dynamix_ps.policy.window_arrays import Array, WindowArrays

BATCH_STEPS = (-1.0, -0.4, -0.15, 0.0, 0.15, 0.4, 1.0)  # log2 of the factor on the advised B
SHARE_STEPS = (-1.0, -0.4, -0.15, -0.05, 0.0, 0.05, 0.15)  # log2 of the factor on a worker's share

_BATCH_STEPS, _SHARE_FACTORS = np.array(BATCH_STEPS), np.exp2(SHARE_STEPS)


class StructuredAgent(LearnedAgent):
    """Network `batch` chooses a factor on the advised global batch; network `share` chooses one per worker's share."""

    def __init__(self, networks: dict[str, ActorCritic], reward: Reward, model: ClusterModel) -> None:
        super().__init__(networks, reward, model)
        self._advisor = Advisor(model)

    def restart(self, which: NDArray[np.bool_]) -> None:
        super().restart(which)
        self._advisor.restart(which)

    def rewards(self, state: State, before: Whole) -> dict[str, Array]:
        return {
            "batch": self._reward.of_cluster(state, before).reshape(-1),
            "share": self._reward.of_share(state, before).reshape(-1),
        }

    def present(self, state: State) -> dict[str, NDArray[np.bool_]]:
        there = state.window.present
        return {"batch": there.any(axis=-1).reshape(-1), "share": there.reshape(-1)}

    def sizes(self, state: State, act: Mapping[str, Act]) -> Whole:
        window = state.window
        advice = self._advisor.observe(window, state.network, state.noise_scale)
        reference = advised_batch(window, advice[..., 0])
        steps = act["batch"](_pooled(state, advice), batch_allowed(window, reference).reshape(-1, len(BATCH_STEPS)))
        total = batch_target(window, reference, steps.reshape(window.planned.shape[:-1]))
        shares = act["share"](state.rows.reshape(-1, state.rows.shape[-1])).reshape(window.planned.shape)
        return self.model.filled(structured_sizes(window, total, self._advisor, shares))


def batch_allowed(window: WindowArrays, reference: Array) -> NDArray[np.bool_]:
    """Which steps are allowed, (..., steps): not those beyond a bound that the reference has reached. 0 always is."""
    steps = _BATCH_STEPS
    smallest, largest = window.smallest_batch[..., None], window.largest_batch[..., None]
    now = reference[..., None]
    return np.asarray((steps == 0) | ((steps < 0) & (now > smallest)) | ((steps > 0) & (now < largest)))


def batch_target(window: WindowArrays, reference: Array, batch_actions: NDArray[np.int64]) -> Whole:
    """The reference times the action's factor, as far as B may move in one window; (...,)."""
    return total_within(window, reference * np.exp2(_BATCH_STEPS[batch_actions]))


def structured_sizes(window: WindowArrays, total: Whole, model: SplitModel, share_actions: NDArray[np.int64]) -> Whole:
    """`total` split so that by `model` all workers finish together, times the factor of each worker's action."""
    return balanced_sizes(window, total, model, _SHARE_FACTORS[share_actions])


def _pooled(state: State, advice: Array) -> Array:
    """One row per cluster: shared values, mean and maximum of the workers' known values, and the advice."""
    local = state.rows[..., : len(LOCAL)]
    known = np.isfinite(local)
    count = known.sum(axis=-2)
    some = count > 0
    mean = np.where(known, local, 0.0).sum(axis=-2) / np.where(some, count, np.nan)
    largest = np.where(some, np.where(known, local, -np.inf).max(axis=-2), np.nan)
    pooled = np.concatenate([state.rows[..., 0, len(LOCAL) :], mean, largest, advice], axis=-1)
    return np.asarray(pooled.reshape(-1, pooled.shape[-1]))
