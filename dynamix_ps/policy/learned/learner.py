"""What the learned policy does to learn while training runs: it rewards decisions and updates copies of the networks.

One update, every `windows_per_update` rewards, in parallel with decisions, with what ppo/learning/ has:

    outcomes -> advantages (rollout.py) -> new weights (update.py), or the old ones if not finite
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import Whole
from dynamix_ps.policy.learned.agent import VALUE_SCALE, AgentDecision, LearnedAgent, UpdateResult
from dynamix_ps.policy.learned.state import State
from dynamix_ps.policy.ppo.learning.rollout import Rollout
from dynamix_ps.policy.ppo.learning.update import learn as learn_from
from dynamix_ps.policy.ppo.settings import PpoSettings
from dynamix_ps.policy.window_arrays import Array


@dataclass(frozen=True, slots=True)
class _Pending:
    """The last decision, not yet rewarded."""

    decided: AgentDecision
    before: Whole
    state: State


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The last rewarded decision. It joins the rollout once it is known whether the next one follows directly."""

    decided: AgentDecision
    rewards: dict[str, Array]
    values_after: dict[str, Array]
    present: dict[str, NDArray[np.bool_]]


class OnlineLearner:
    """Collects the outcomes of decisions, one after the other, and learns from them."""

    def __init__(self, agent: LearnedAgent, settings: PpoSettings, windows_per_update: int) -> None:
        self._agent, self._settings, self._windows_per_update = agent, settings, windows_per_update
        self._pending: _Pending | None = None
        self._outcome: _Outcome | None = None
        self._rollouts = self._empty()

    @property
    def update_due(self) -> bool:
        return len(next(iter(self._rollouts.values()))) >= self._windows_per_update

    def reward(self, state: State, decided: AgentDecision) -> float | None:
        """Takes in a decision and the state it saw. Returns the mean reward of the decision before, if it has one."""
        earned = self._settle(state, decided)
        self._pending = _Pending(decided, state.window.planned, state)
        return earned

    def begin_update(self) -> Callable[[], UpdateResult]:
        """Take the collected outcomes. The returned function learns from them on copies, in any thread."""
        rollouts, self._rollouts = self._rollouts, self._empty()
        networks = {name: network.copy() for name, network in self._agent.networks.items()}
        following = self._outcome.decided.acted if self._outcome else {}  # empty: the last step has no successor
        batches = {
            name: rollout.batch(following[name].values if name in following else None)
            for name, rollout in rollouts.items()
        }

        def learn() -> UpdateResult:
            diagnostics = {name: learn_from(network, batches[name]) for name, network in networks.items()}
            return UpdateResult(networks, diagnostics)

        return learn

    def _empty(self) -> dict[str, Rollout]:
        return {name: Rollout(self._settings) for name in self._agent.networks}

    def _settle(self, state: State, decided: AgentDecision) -> float | None:
        """Credit the previous decision with the reward of this window; returns the mean reward, or None.

        Only if the window ran under the sizes of that decision. A decision whose sizes were never in force
        (observe mode, a restart, the safety net) is dropped, so that it gets no reward for another plan's window.
        """
        pending, self._pending = self._pending, None
        if pending is None or not np.array_equal(pending.decided.sizes, state.window.planned):
            self._collect(None)
            return None
        rewards = self._agent.rewards(state, pending.before)
        was_there, is_there = self._agent.present(pending.state), self._agent.present(state)
        both = {name: was_there[name] & is_there[name] for name in rewards}
        if not any(there.any() for there in both.values()):
            self._collect(None)
            return None
        values_after = {name: acted.values for name, acted in decided.acted.items()}
        self._collect(_Outcome(pending.decided, rewards, values_after, both))
        name = next(iter(rewards))
        return float(rewards[name][both[name]].mean())

    def _collect(self, outcome: _Outcome | None) -> None:
        """Put the previous outcome into the rollouts, cut there if this one does not follow it directly."""
        before, self._outcome = self._outcome, outcome
        if before is None:
            return
        for name, rollout in self._rollouts.items():
            cut = np.full(len(before.rewards[name]), outcome is None)
            after = before.values_after[name]
            scaled = VALUE_SCALE * before.rewards[name]
            rollout.add(before.decided.acted[name], scaled, cut, after, before.present[name])
