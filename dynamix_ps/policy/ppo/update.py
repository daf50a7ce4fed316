"""One PPO update (arXiv 1707.06347): clipped surrogate, critic, entropy bonus, minibatches, gradient clipping."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dynamix_ps.config import Ppo
from dynamix_ps.policy.ppo.adam import AdamState, adam_step, clip_norm
from dynamix_ps.policy.ppo.network import Array, Params, backward, finite, forward, log_softmax
from dynamix_ps.policy.ppo.rollout import Batch

_LARGEST_LOG_RATIO = 20.0  # beyond this the ratio would overflow float32; it is far outside the clip range


@dataclass(frozen=True, slots=True)
class Losses:
    """Parts of the loss of one minibatch, and how far the policy has moved from the one that acted."""

    total: float
    policy: float
    value: float
    entropy: float
    approx_kl: float  # mean of (r - 1) - log r, r the probability ratio; >= 0
    clip_fraction: float


@dataclass(frozen=True, slots=True)
class Updated:
    """The weights to go on with. If `accepted` is false they are the ones from before."""

    params: Params
    adam: AdamState
    accepted: bool
    diagnostics: dict[str, float]


def loss_and_gradients(params: Params, batch: Batch, ppo: Ppo) -> tuple[Losses, Params]:
    """-mean(min(r A, clip(r) A)) - entropy * mean(H) + value_weight * mean((V - R)^2) / 2, and its gradient."""
    count = len(batch)
    every = np.arange(count)
    result = forward(params, batch.rows)
    log_p = log_softmax(result.logits)
    p = np.exp(log_p)
    log_ratio = np.clip(log_p[every, batch.actions] - batch.log_probs, -_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    ratio = np.exp(log_ratio)
    plain = ratio * batch.advantages
    clipped = np.clip(ratio, 1 - ppo.clip, 1 + ppo.clip) * batch.advantages
    entropy = -(p * log_p).sum(axis=1)
    error = result.values - batch.returns

    policy_loss = -np.minimum(plain, clipped).mean()
    value_loss = 0.5 * (error**2).mean()
    total = policy_loss - ppo.entropy * entropy.mean() + ppo.value_weight * value_loss

    d_log_prob = np.where(plain <= clipped, -plain, 0) / count
    chosen = np.zeros_like(p)
    chosen[every, batch.actions] = 1
    d_logits: Array = d_log_prob[:, None] * (chosen - p) + ppo.entropy / count * p * (log_p + entropy[:, None])
    d_values: Array = ppo.value_weight / count * error
    losses = Losses(
        total=float(total),
        policy=float(policy_loss),
        value=float(value_loss),
        entropy=float(entropy.mean()),
        approx_kl=float((ratio - 1 - log_ratio).mean()),
        clip_fraction=float((np.abs(ratio - 1) > ppo.clip).mean()),
    )
    return losses, backward(params, result, d_logits, d_values)


def update(params: Params, adam: AdamState, batch: Batch, ppo: Ppo, rng: np.random.Generator) -> Updated:
    """`ppo.epochs` passes over the batch. If anything becomes NaN or infinite, nothing is changed."""
    start = Updated(params, adam, False, {})
    losses, norm = None, 0.0
    for _ in range(ppo.epochs):
        for index in np.array_split(rng.permutation(len(batch)), min(ppo.minibatches, len(batch))):
            losses, gradients = loss_and_gradients(params, batch.take(index), ppo)
            gradients, norm = clip_norm(gradients, ppo.max_grad_norm)
            params, adam = adam_step(params, gradients, adam, ppo.learning_rate)
            if not np.isfinite([losses.total, norm]).all() or not finite(params):
                return Updated(start.params, start.adam, False, {"loss": losses.total, "grad_norm": norm})
    if losses is None:
        return start
    diagnostics = {
        "loss": losses.total,
        "policy_loss": losses.policy,
        "value_loss": losses.value,
        "entropy": losses.entropy,
        "approx_kl": losses.approx_kl,
        "clip_fraction": losses.clip_fraction,
        "explained_variance": _explained_variance(batch),
        "grad_norm": norm,
        "samples": float(len(batch)),
    }
    return Updated(params, adam, True, diagnostics)


def _explained_variance(batch: Batch) -> float:
    """1 - var(R - V) / var(R) with the values of the critic that acted; NaN for constant returns."""
    spread = float(np.var(batch.returns))
    return 1 - float(np.var(batch.returns - batch.values)) / spread if spread > 0 else float("nan")
