"""The action spaces by name: the content of their policy files, their untrained networks, and their agents."""

from __future__ import annotations

import numpy as np

from dynamix_ps.policy.learned.agent import LearnedAgent
from dynamix_ps.policy.learned.features import LOCAL, NAMES, SHARED
from dynamix_ps.policy.learned.paper import PAPER_STEPS, PaperAgent
from dynamix_ps.policy.learned.rewards import Reward
from dynamix_ps.policy.learned.structured import BATCH_STEPS, SHARE_STEPS, StructuredAgent
from dynamix_ps.policy.model.advice import ADVICE
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.ppo.actor_critic import ActorCritic
from dynamix_ps.policy.ppo.policy_file import PolicySpec
from dynamix_ps.policy.ppo.settings import PpoSettings

PRIOR = {"batch": 2.0, "share": 3.0}  # logit by which an untrained structured network prefers to follow the model

_LOCAL_NAMES = tuple(feature.name for feature in LOCAL)
_POOLED_NAMES = (
    *(feature.name for feature in SHARED),
    *(f"mean {name}" for name in _LOCAL_NAMES),
    *(f"max {name}" for name in _LOCAL_NAMES),
    *ADVICE,
)


def policy_spec(space: str, hidden: int) -> PolicySpec:
    """The spec that a policy file must have to fit an agent with these actions."""
    if space == "paper":
        return PolicySpec(space, {"worker": NAMES}, {"worker": PAPER_STEPS}, hidden)
    return PolicySpec(
        space, {"batch": _POOLED_NAMES, "share": NAMES}, {"batch": BATCH_STEPS, "share": SHARE_STEPS}, hidden
    )


def fresh_networks(spec: PolicySpec, settings: PpoSettings, rng: np.random.Generator) -> dict[str, ActorCritic]:
    """Untrained networks. Those of the structured space start close to following the model (chosen by us)."""
    networks = {}
    for name, features in spec.features.items():
        steps = spec.actions[name]
        networks[name] = ActorCritic.fresh(len(features), len(steps), settings, rng)
        _, last_bias = networks[name].weights.params.actor[-1]
        last_bias[steps.index(0)] = PRIOR.get(name, 0.0)
    return networks


def make_agent(space: str, networks: dict[str, ActorCritic], reward: Reward, model: ClusterModel) -> LearnedAgent:
    """An agent for the clusters of `model`."""
    return (PaperAgent if space == "paper" else StructuredAgent)(networks, reward, model)
