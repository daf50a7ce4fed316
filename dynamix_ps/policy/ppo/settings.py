"""All hyper-parameters of the learner. Their defaults are those of the cluster file, `config.schema.Ppo`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from dynamix_ps.config.schema import Ppo

_DEFAULT = Ppo()


@dataclass(frozen=True, slots=True)
class PpoSettings:
    """Hyper-parameters.

    `clip` is PPO with a critic and GAE (arXiv 1707.06347). `simple` maximises mean(ratio * discounted return), as the
    text of DYNAMIX (arXiv 2510.08522, IV-A) describes it: no critic, no baseline, no clipping, no entropy bonus. It
    reads only gamma, learning_rate, max_grad_norm, epochs and minibatches.
    """

    learner: Literal["clip", "simple"] = _DEFAULT.learner
    hidden: int = _DEFAULT.hidden  # width of the two tanh layers of policy and critic
    normalise: bool = True  # normalise observations by running mean and deviation, with a mask of known values
    learning_rate: float = _DEFAULT.learning_rate
    gamma: float = _DEFAULT.gamma  # discount per step
    gae_lambda: float = _DEFAULT.gae_lambda
    clip: float = _DEFAULT.clip  # the probability ratio is held within 1 -+ clip
    entropy: float = _DEFAULT.entropy  # weight of the entropy bonus
    value_weight: float = _DEFAULT.value_weight  # weight of the critic's mean squared error
    max_grad_norm: float = _DEFAULT.max_grad_norm
    target_kl: float | None = _DEFAULT.target_kl  # an update stops once the policy has moved this far; None: never
    epochs: int = _DEFAULT.epochs  # passes over a batch
    minibatches: int = _DEFAULT.minibatches  # per pass


def settings_of(ppo: Ppo) -> PpoSettings:
    """The learner's settings in section `policy.ppo` of a cluster file."""
    names = {one.name for one in dataclasses.fields(PpoSettings)} & Ppo.model_fields.keys()
    return PpoSettings(**{name: getattr(ppo, name) for name in names})
