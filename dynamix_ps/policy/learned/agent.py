"""The learned policy between windows and batch sizes: which networks it has, what each sees, does and is rewarded for.

    window -> state -> what each network sees -> its actions -> sizes
    next state -> reward of every network's actions (rewards.py)

An action space is one agent: structured.py, paper.py. The same object decides for one live cluster (no leading axis)
and, in training, for all environments of the simulator at once. One network may serve many rows: all workers share it.
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
from dynamix_ps.policy.cluster_model.model import ClusterModel
from dynamix_ps.policy.learned.rewards import Reward
from dynamix_ps.policy.learned.state import State, StateBuilder
from dynamix_ps.policy.ppo.actor_critic import ActorCritic
from dynamix_ps.policy.ppo.rollout import Acted
from dynamix_ps.policy.window_arrays import Array

VALUE_SCALE = 0.1  # of rewards in rollouts: values, sums of about ten of them, stay near one (chosen by us)


@dataclass(frozen=True, slots=True)
class Decided:
    """New sizes, and per network what it did; rows of a network are flattened over all leading axes."""

    sizes: Whole
    acted: Mapping[str, Acted]


class Act(Protocol):
    """A network's actions, one per row."""

    def __call__(self, rows: Array, allowed: NDArray[np.bool_] | None = None, /) -> NDArray[np.int64]: ...


class LearnedAgent(ABC):
    """Learning replaces `networks`; all other memory is of the runs in progress.

    Args:
        model: of the clusters; this agent lets it observe them.
    """

    def __init__(self, networks: dict[str, ActorCritic], reward: Reward, model: ClusterModel) -> None:
        self.networks = networks
        self.model = model
        self._reward = reward
        self.states = StateBuilder(model)

    def choices(self, *, explore: bool) -> dict[str, Act]:
        """How each network acts where nobody learns: the likeliest action, or one drawn from its policy."""
        return {name: partial(network.choose, explore=explore) for name, network in self.networks.items()}

    @abstractmethod
    def sizes(self, state: State, act: Mapping[str, Act]) -> Whole:
        """Sizes for the next windows, of the shape of `state.window.planned`, from what the networks do.

        Args:
            state: of the window that ended, from `states.observe`; call both once per window, in order.
            act: by the name of each network, as `choices` gives it.
        """

    def decide(self, state: State, *, explore: bool, learn_normaliser: bool = False) -> Decided:
        """Sizes, and all that learning needs to know of the decision."""
        acted: dict[str, Acted] = {}

        def act(name: str, rows: Array, allowed: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
            acted[name] = self.networks[name].act(
                rows, explore=explore, learn_normaliser=learn_normaliser, allowed=allowed
            )
            return acted[name].actions

        return Decided(self.sizes(state, {name: partial(act, name) for name in self.networks}), acted)

    def restart(self, which: NDArray[np.bool_]) -> None:
        """Forget what is remembered of some environments."""
        self.states.restart(which)

    @abstractmethod
    def rewards(self, state: State, before: Whole) -> dict[str, Array]:
        """Per network and row, what the decision that led to `state` from sizes `before` was worth."""

    @abstractmethod
    def present(self, state: State) -> dict[str, NDArray[np.bool_]]:
        """Per network, which rows stand for somebody that is there."""
