"""A policy network with its critic: acts on observations, and values states.

    raw observations -> normaliser -> policy -> actions (`act`) -> rewards ... -> learning/

Weights never change in place: learning replaces them, so copies, files and other threads can keep using theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.errors import PolicyError
from dynamix_ps.policy.ppo.network import Array, Normaliser, Params, Shape, forward, initialise, log_softmax, masked
from dynamix_ps.policy.ppo.settings import PpoSettings


@dataclass(slots=True)
class AdamState:
    """The number of steps, and the running means of the gradient and of its square."""

    step: int
    mean: Array
    square: Array

    @staticmethod
    def zero(weights: Array) -> AdamState:
        return AdamState(0, np.zeros_like(weights), np.zeros_like(weights))

    def copy(self) -> AdamState:
        return AdamState(self.step, self.mean.copy(), self.square.copy())


@dataclass(frozen=True, slots=True)
class Weights:
    """Everything learned. Without Adam's state (exported for inference), learning begins with a fresh one."""

    params: Params
    adam: AdamState | None
    normaliser: Normaliser | None  # None: observations are used as they are


@dataclass(frozen=True, slots=True)
class Acted:
    """One step of all N actors (environments, workers): their observations and actions."""

    rows: Array  # (N, inputs) of the network
    actions: NDArray[np.int64]  # (N,)
    log_probs: Array  # (N,) of the actions, under the policy that took them
    values: Array  # (N,) the critic's values of the states; 0 without a critic
    allowed: NDArray[np.bool_] | None = None  # (N, actions) that could be chosen; None: all


class ActorCritic:
    """A policy with its critic.

    Args:
        rng: its only source of random numbers.
    """

    def __init__(self, weights: Weights, settings: PpoSettings, rng: np.random.Generator) -> None:
        self.weights = weights
        self.settings = settings
        self.rng = rng

    @staticmethod
    def fresh(n_features: int, n_actions: int, settings: PpoSettings, rng: np.random.Generator) -> ActorCritic:
        """A learner with new weights drawn from `rng`."""
        n_inputs = 2 * n_features if settings.normalise else n_features
        params = initialise(Shape(n_inputs, settings.hidden, n_actions), rng)
        normaliser = Normaliser.empty(n_features) if settings.normalise else None
        return ActorCritic(Weights(params, AdamState.zero(params.flat), normaliser), settings, rng)

    def act(
        self,
        raw: NDArray[np.floating[Any]],
        *,
        explore: bool,
        learn_normaliser: bool = False,
        allowed: NDArray[np.bool_] | None = None,
    ) -> Acted:
        """One action for every row.

        Args:
            raw: (N, features), NaN where unknown.
            explore: draw from the policy; otherwise take the most likely action.
            learn_normaliser: add these rows to the normaliser's statistics first.
            allowed: (N, actions), which actions may be chosen, at least one per row; None: all of them.

        Raises:
            PolicyError: an observation is unknown and there is no normaliser, or a row has no allowed action.
        """
        weights = self.weights
        if learn_normaliser and weights.normaliser is not None:
            self.weights = Weights(weights.params, weights.adam, weights.normaliser.updated(raw))
        rows = self._rows(raw)
        log_probs = log_softmax(self._logits(rows, allowed))
        actions = self._draw(log_probs) if explore else log_probs.argmax(axis=1)
        return Acted(rows, actions, log_probs[np.arange(len(rows)), actions], self._judge(rows), allowed)

    def choose(
        self, raw: NDArray[np.floating[Any]], allowed: NDArray[np.bool_] | None = None, *, explore: bool
    ) -> NDArray[np.int64]:
        """Only the actions of `act`, (N,); for callers that do not learn. Raises as `act` does."""
        logits = self._logits(self._rows(raw), allowed)
        return self._draw(log_softmax(logits)) if explore else np.asarray(logits.argmax(axis=1))

    def values(self, raw: NDArray[np.floating[Any]]) -> Array:
        """The critic's value of every row (N, features); 0 for a learner without a critic. Raises as `act` does."""
        return self._judge(self._rows(raw))

    def copy(self) -> ActorCritic:
        """An independent learner with the same weights and its own random numbers; another thread may use it."""
        return ActorCritic(self.weights, self.settings, self.rng.spawn(1)[0])

    def adopt(self, learned: ActorCritic) -> None:
        """Take over the networks that a copy has learned. The normaliser, which has seen more rows here, stays."""
        self.weights = Weights(learned.weights.params, learned.weights.adam, self.weights.normaliser)

    def _rows(self, raw: NDArray[np.floating[Any]]) -> Array:
        if self.weights.normaliser is not None:
            return self.weights.normaliser.apply(raw)
        rows = raw.astype(np.float32)
        if not np.isfinite(rows).all():
            raise PolicyError("an observation is NaN or infinite, expected finite numbers; set normalise")
        return rows

    def _logits(self, rows: Array, allowed: NDArray[np.bool_] | None) -> Array:
        logits = forward(self.weights.params.actor, rows)[-1]
        if allowed is None:
            return logits
        if not allowed.any(axis=1).all():
            raise PolicyError("no action is allowed in a row, expected at least one; correct the mask")
        return masked(logits, allowed)

    def _judge(self, rows: Array) -> Array:
        if self.settings.learner == "simple":
            return np.zeros(len(rows), dtype=np.float32)
        return forward(self.weights.params.critic, rows)[-1][:, 0]

    def _draw(self, log_probs: Array) -> NDArray[np.int64]:
        """One action per row, by inverting the distribution; never one of probability 0."""
        below = np.exp(log_probs, dtype=np.float64).cumsum(axis=1)
        whole = below[:, -1:]
        draw = np.minimum(self.rng.random((len(below), 1)) * whole, np.nextafter(whole, 0))
        return np.asarray((below > draw).argmax(axis=1))
