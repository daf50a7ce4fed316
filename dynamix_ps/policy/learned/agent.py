"""The learned policy between states and batch sizes: which networks it has, what each sees, does and is rewarded for.

    state -> what each network sees -> its actions (ppo/agent.py) -> sizes (actions.py)
    next state -> reward of every network's actions (rewards.py)

The same object decides for one live cluster (no leading axis) and, in training, for all environments of the simulator
at once. One network may serve many rows: all workers share one policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import Whole
from dynamix_ps.policy.cluster_model.model import ClusterModel
from dynamix_ps.policy.learned import actions
from dynamix_ps.policy.learned.advice import ADVICE, Advisor
from dynamix_ps.policy.learned.features import LOCAL, NAMES, SHARED
from dynamix_ps.policy.learned.rewards import Reward
from dynamix_ps.policy.learned.state import State
from dynamix_ps.policy.ppo.actor_critic import Agent
from dynamix_ps.policy.ppo.policy_file import Spaces
from dynamix_ps.policy.ppo.rollout import Acted
from dynamix_ps.policy.ppo.settings import Settings
from dynamix_ps.policy.window_arrays import Array

VALUE_SCALE = 0.1  # of rewards in rollouts: values, sums of about ten of them, stay near one (chosen by us)

PRIOR = {"batch": 2.0, "share": 3.0}  # logit by which an untrained structured network prefers to follow the model

_SHARED_NAMES = tuple(feature.name for feature in SHARED)
_LOCAL_NAMES = tuple(feature.name for feature in LOCAL)
_POOLED_NAMES = (
    *_SHARED_NAMES,
    *(f"mean {name}" for name in _LOCAL_NAMES),
    *(f"max {name}" for name in _LOCAL_NAMES),
    *ADVICE,
)


@dataclass(frozen=True, slots=True)
class Decided:
    """New sizes, and per network what it did; rows of a network are flattened over all leading axes."""

    sizes: Whole
    acted: Mapping[str, Acted]


class Brain(Protocol):
    """Both kinds. `agents` are replaced by learning; all other memory is of the runs in progress."""

    agents: dict[str, Agent]

    def decide(self, state: State, *, explore: bool, learn_normaliser: bool = False) -> Decided:
        """Sizes for the next windows, of the shape of `state.window.planned`."""
        ...

    def rewards(self, state: State, before: Whole) -> dict[str, Array]:
        """Per network and row, what the decision that led to `state` from sizes `before` was worth."""
        ...

    def present(self, state: State) -> dict[str, NDArray[np.bool_]]:
        """Per network, which rows stand for somebody that is there."""
        ...

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Forget what is remembered of some environments."""
        ...


def spaces_of(kind: str, hidden: int) -> Spaces:
    """What a policy file must say to fit a brain of this kind."""
    if kind == "paper":
        return Spaces(kind, {"worker": NAMES}, {"worker": actions.PAPER_STEPS}, hidden)
    return Spaces(
        kind,
        {"batch": _POOLED_NAMES, "share": NAMES},
        {"batch": actions.BATCH_STEPS, "share": actions.SHARE_STEPS},
        hidden,
    )


def fresh_agents(spaces: Spaces, settings: Settings, rng: np.random.Generator) -> dict[str, Agent]:
    """Untrained networks for these spaces. Those of the structured space begin near the model (chosen by us)."""
    agents = {}
    for name, features in spaces.features.items():
        steps = spaces.actions[name]
        agents[name] = Agent.fresh(len(features), len(steps), settings, rng)
        _, last_bias = agents[name].weights.params.actor[-1]
        last_bias[steps.index(0)] = PRIOR.get(name, 0.0)
    return agents


def make_brain(kind: str, agents: dict[str, Agent], reward: Reward, model: ClusterModel) -> Brain:
    """A brain for the clusters of `model`."""
    return PaperBrain(agents, reward) if kind == "paper" else StructuredBrain(agents, reward, model)


class PaperBrain:
    """One network; every worker adds a step to its own size."""

    def __init__(self, agents: dict[str, Agent], reward: Reward) -> None:
        self.agents = agents
        self._reward = reward

    def decide(self, state: State, *, explore: bool, learn_normaliser: bool = False) -> Decided:
        window = state.window
        acted = self.agents["worker"].act(_flat(state.rows), explore=explore, learn_normaliser=learn_normaliser)
        wanted = actions.paper_sizes(
            window.planned, acted.actions.reshape(window.planned.shape), window.low, window.high
        )
        return Decided(np.where(window.present, wanted, window.planned), {"worker": acted})

    def rewards(self, state: State, before: Whole) -> dict[str, Array]:
        return {"worker": self._reward.of_worker(state, before).reshape(-1)}

    def present(self, state: State) -> dict[str, NDArray[np.bool_]]:
        return {"worker": state.window.present.reshape(-1)}

    def restart(self, which: NDArray[np.bool_]) -> None:
        """It remembers nothing."""


class StructuredBrain:
    """Network `batch` chooses a factor on the advised global batch, network `share` one on every worker's share."""

    def __init__(self, agents: dict[str, Agent], reward: Reward, model: ClusterModel) -> None:
        self.agents = agents
        self._reward = reward
        self._advisor = Advisor(model)

    def decide(self, state: State, *, explore: bool, learn_normaliser: bool = False) -> Decided:
        window = state.window
        advice = self._advisor.observe(state)
        reference = actions.batch_reference(window, advice[..., 0])
        allowed = actions.batch_allowed(window, reference)
        batch = self.agents["batch"].act(
            _pooled(state, advice),
            explore=explore,
            learn_normaliser=learn_normaliser,
            allowed=allowed.reshape(-1, allowed.shape[-1]),
        )
        share = self.agents["share"].act(_flat(state.rows), explore=explore, learn_normaliser=learn_normaliser)
        total = actions.batch_target(window, reference, batch.actions.reshape(window.planned.shape[:-1]))
        shares = share.actions.reshape(window.planned.shape)
        sizes = actions.structured_sizes(window, total, self._advisor, shares)
        return Decided(sizes, {"batch": batch, "share": share})

    def rewards(self, state: State, before: Whole) -> dict[str, Array]:
        return {
            "batch": self._reward.of_cluster(state, before).reshape(-1),
            "share": self._reward.of_share(state, before).reshape(-1),
        }

    def present(self, state: State) -> dict[str, NDArray[np.bool_]]:
        there = state.window.present
        return {"batch": there.any(axis=-1).reshape(-1), "share": there.reshape(-1)}

    def restart(self, which: NDArray[np.bool_]) -> None:
        self._advisor.restart(which)


def _flat(rows: Array) -> Array:
    return rows.reshape(-1, rows.shape[-1])


def _pooled(state: State, advice: Array) -> Array:
    """One row per cluster: shared values, mean and largest of the workers' known ones, and the advice."""
    local = state.rows[..., : len(LOCAL)]
    known = np.isfinite(local)
    count = known.sum(axis=-2)
    mean = np.where(known, local, 0.0).sum(axis=-2) / np.where(count > 0, count, np.nan)
    largest = np.where(count > 0, np.where(known, local, -np.inf).max(axis=-2), np.nan)
    return _flat(np.concatenate([state.rows[..., 0, len(LOCAL) :], mean, largest, advice], axis=-1))
