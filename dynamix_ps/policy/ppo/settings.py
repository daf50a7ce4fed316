"""All hyper-parameters of the learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Settings:
    """Hyper-parameters.

    `clip` is PPO with a critic and GAE (arXiv 1707.06347). `simple` maximises mean(ratio * discounted return), as the
    text of DYNAMIX (arXiv 2510.08522, IV-A) says it ran: no critic, no baseline, no clipping, no entropy bonus. It
    reads only gamma, learning_rate, max_grad_norm, epochs and minibatches.
    """

    learner: Literal["clip", "simple"] = "clip"
    hidden: int = 64  # width of the two tanh layers of policy and critic
    normalise: bool = True  # observations by their running mean and deviation, with a mask of what is known
    learning_rate: float = 3e-4
    gamma: float = 0.99  # discount per step
    gae_lambda: float = 0.95
    clip: float = 0.2  # the probability ratio is held within 1 -+ clip
    entropy: float = 0.01  # weight of the entropy bonus
    value_weight: float = 0.5  # weight of the critic's mean squared error
    max_grad_norm: float = 0.5
    target_kl: float | None = 0.03  # an update ends when the policy has moved this far; none: it never ends early
    epochs: int = 4  # passes over a batch
    minibatches: int = 4  # per pass
