"""The learned policy from windows to batch sizes: its networks, and what each one sees, does and is rewarded for.

    window -> state -> input of each network -> its actions -> sizes
    next state -> reward of every network's actions (rewards.py)

Each action space is one agent class: structured.py, paper.py. The same class decides for one live cluster (no leading
axis) and, in training, for all environments of the simulator at once. All workers share one network: each is a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import Whole
from dynamix_ps.policy.learned.rewards import Reward
from dynamix_ps.policy.learned.state import State, StateBuilder
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.ppo.actor_critic import Acted, ActorCritic
from dynamix_ps.policy.window_arrays import Array

VALUE_SCALE = 0.1  # of rewards in rollouts: keeps values, sums of about ten rewards, near one (chosen by us)


@dataclass(frozen=True, slots=True)
class AgentDecision:
    """New sizes, and what each network did; its rows are flattened over all leading axes."""

    sizes: Whole
    acted: Mapping[str, Acted]


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """The result of an update on copies: the networks that learned, and the diagnostics of each."""

    networks: dict[str, ActorCritic]
    diagnostics: Mapping[str, Mapping[str, float]]


class Act(Protocol):
    """A network's actions, one per row."""

    def __call__(self, rows: Array, allowed: NDArray[np.bool_] | None = None, /) -> NDArray[np.int64]: ...


class LearnedAgent(ABC):
    """An action space with its networks. Learning replaces `networks`; all other state belongs to the runs in progress.

    Args:
        model: model of the clusters; this agent lets it observe every window.
    """

    def __init__(self, networks: dict[str, ActorCritic], reward: Reward, model: ClusterModel) -> None:
        self.networks = networks
        self.model = model
        self._reward = reward
        self.states = StateBuilder(model)

    def choices(self, *, explore: bool) -> dict[str, Act]:
        """How each network acts without learning: the most likely action, or one drawn from its policy."""
        return {name: partial(network.choose, explore=explore) for name, network in self.networks.items()}

    @abstractmethod
    def sizes(self, state: State, act: Mapping[str, Act]) -> Whole:
        """Sizes for the next windows from the networks' actions, of the shape of `state.window.planned`.

        Args:
            state: state at the end of the window, from `states.observe`; call both once per window, in order.
            act: one function per network name, as `choices` returns them.
        """

    def decide(self, state: State, *, explore: bool, learn_normaliser: bool = False) -> AgentDecision:
        """Sizes, and everything that learning needs from the decision."""
        acted: dict[str, Acted] = {}

        def act(name: str, rows: Array, allowed: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
            acted[name] = self.networks[name].act(
                rows, explore=explore, learn_normaliser=learn_normaliser, allowed=allowed
            )
            return acted[name].actions

        return AgentDecision(self.sizes(state, {name: partial(act, name) for name in self.networks}), acted)

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Forget some environments."""
        self.states.restart(which)

    @abstractmethod
    def rewards(self, state: State, before: Whole) -> dict[str, Array]:
        """Per network and row, the reward of the decision that led from sizes `before` to `state`."""

    @abstractmethod
    def present(self, state: State) -> dict[str, NDArray[np.bool_]]:
        """Per network, which rows belong to present workers or clusters."""
