"""One PPO update (arXiv 1707.06347): minibatches, clipped surrogate, critic, entropy bonus; or the `simple` loss."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.policy.ppo.actor_critic import ActorCritic, AdamState, Weights
from dynamix_ps.policy.ppo.learning.adam import adam_step, clip_norm
from dynamix_ps.policy.ppo.learning.rollout import RolloutBatch
from dynamix_ps.policy.ppo.network import Array, Params, backward, forward, log_softmax, masked
from dynamix_ps.policy.ppo.settings import PpoSettings

_LARGEST_LOG_RATIO = 20.0  # a larger one could overflow float32; this is far outside the clip range


@dataclass(frozen=True, slots=True)
class Losses:
    """Parts of the loss of one minibatch, and the distance from the policy that acted."""

    total: float
    policy: float
    value: float
    entropy: float
    approx_kl: float  # mean of (r - 1) - log r, r the probability ratio; >= 0
    clip_fraction: float


@dataclass(frozen=True, slots=True)
class Updated:
    """The weights after an update. If `accepted` is false, they are the previous ones."""

    params: Params
    adam: AdamState
    accepted: bool
    diagnostics: dict[str, float]


def loss_and_gradient(params: Params, batch: RolloutBatch, settings: PpoSettings) -> tuple[Losses, Array]:
    """The loss and its gradient with respect to all weights.

    `clip`: -mean(min(r A, clip(r) A)) - entropy * mean(H) + value_weight * mean((V - R)^2); `simple`: -mean(r A).
    """
    count = len(batch)
    every = np.arange(count)
    gradient = Params(params.shape, np.zeros_like(params.flat))
    seen = forward(params.actor, batch.rows)
    log_p = log_softmax(masked(seen[-1], batch.allowed))
    p = np.exp(log_p)
    log_ratio = np.clip(log_p[every, batch.actions] - batch.log_probs, -_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    ratio = np.exp(log_ratio)
    entropy = -np.einsum("ij,ij->i", p, log_p)
    plain = ratio * batch.advantages
    outside = np.abs(ratio - 1) > settings.clip
    approx_kl, clip_fraction = float((ratio - 1 - log_ratio).mean()), float(outside.mean())

    if settings.learner == "simple":
        policy_loss = -float(plain.mean())
        d_logits = _d_log_probs(p, batch.actions, plain / -count)
        backward(params.actor, seen, d_logits, gradient.actor)
        parts = Losses(policy_loss, policy_loss, 0.0, float(entropy.mean()), approx_kl, clip_fraction)
        return parts, gradient.flat

    clipped = np.clip(ratio, 1 - settings.clip, 1 + settings.clip) * batch.advantages
    policy_loss = -float(np.minimum(plain, clipped).mean())
    d_logits = _d_log_probs(p, batch.actions, np.where(plain <= clipped, plain, 0) / -count)
    d_logits += settings.entropy / count * p * (log_p + entropy[:, None])
    backward(params.actor, seen, d_logits, gradient.actor)

    judged = forward(params.critic, batch.rows)
    error = judged[-1] - batch.returns[:, None]
    value_loss = float((error * error).mean())
    backward(params.critic, judged, 2 * settings.value_weight / count * error, gradient.critic)

    mean_entropy = float(entropy.mean())
    total = policy_loss - settings.entropy * mean_entropy + settings.value_weight * value_loss
    return Losses(total, policy_loss, value_loss, mean_entropy, approx_kl, clip_fraction), gradient.flat


def update(
    params: Params,
    adam: AdamState,
    batch: RolloutBatch,
    settings: PpoSettings,
    learning_rate: float,
    rng: np.random.Generator,
) -> Updated:
    """Make `settings.epochs` passes over the batch, or fewer if `target_kl` is reached. The arguments do not change.

    If anything becomes NaN or infinite, the result has the previous weights. The diagnostics are those of the last
    minibatch; the explained variance belongs to the critic that acted.
    """
    new, state = params.copy(), adam.copy()
    losses, norm, steps = None, math.nan, 0
    limit = settings.target_kl if settings.learner == "clip" else None
    for index in _minibatches(len(batch), settings, rng):
        losses, gradient = loss_and_gradient(new, batch.take(index), settings)
        if limit is not None and losses.approx_kl > limit:
            break
        norm = clip_norm(gradient, settings.max_grad_norm)
        if not (math.isfinite(losses.total) and math.isfinite(norm)):
            return Updated(params, adam, False, {"loss": losses.total, "grad_norm": norm})
        adam_step(new.flat, gradient, state, learning_rate)
        steps += 1
    if losses is None or not np.isfinite(new.flat).all():
        return Updated(params, adam, False, {})
    diagnostics = {
        "loss": losses.total,
        "policy_loss": losses.policy,
        "entropy": losses.entropy,
        "approx_kl": losses.approx_kl,
        "clip_fraction": losses.clip_fraction,
        "grad_norm": norm,
        "steps": float(steps),
        "samples": float(len(batch)),
    }
    if settings.learner == "clip":
        diagnostics |= {"value_loss": losses.value, "explained_variance": _explained_variance(batch)}
    return Updated(new, state, True, diagnostics)


def learn(network: ActorCritic, batch: RolloutBatch, learning_rate: float | None = None) -> dict[str, float]:
    """The network learns from a batch. Returns diagnostics; `accepted` is 0 if the previous weights were kept.

    Args:
        learning_rate: overrides the one in the settings.
    """
    weights, settings = network.weights, network.settings
    adam = AdamState.zero(weights.params.flat) if weights.adam is None else weights.adam
    rate = settings.learning_rate if learning_rate is None else learning_rate
    result = update(weights.params, adam, batch, settings, rate, network.rng)
    network.weights = Weights(result.params, result.adam, weights.normaliser)
    return {"accepted": float(result.accepted), **result.diagnostics}


def _minibatches(count: int, settings: PpoSettings, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Row numbers of every minibatch of every pass; each pass has a new order."""
    for _ in range(settings.epochs if count else 0):
        yield from np.array_split(rng.permutation(count), min(settings.minibatches, count))


def _d_log_probs(p: Array, actions: NDArray[np.int64], d_chosen: Array) -> Array:
    """Gradient with respect to the logits, from that with respect to the log-probability of the chosen action."""
    result: Array = -d_chosen[:, None] * p
    result[np.arange(len(actions)), actions] += d_chosen
    return result


def _explained_variance(batch: RolloutBatch) -> float:
    """1 - var(R - V) / var(R); NaN for constant returns."""
    spread = float(np.var(batch.returns))
    return 1 - float(np.var(batch.returns - batch.values)) / spread if spread > 0 else math.nan
