"""DYNAMIX's agent: one policy for all workers, which acts, gets rewards and learns while training runs.

The story of one decision (`decide`):

    clean window -> state of every worker -> reward of the decision before -> action per worker -> new sizes

and of one update (`update`), every `windows_per_update` rewards:

    outcomes -> advantages (gae.py) -> clipped surrogate (update.py) -> new weights, or the old ones if not finite

Faithful to the paper in form (shared parameters, five additive actions, its reward, clipped objective with a
critic); what it leaves open is listed in docs/method.md as chosen by us.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.config import Ppo
from dynamix_ps.errors import PolicyError
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.policy.features import NAMES
from dynamix_ps.policy.ppo.adam import AdamState
from dynamix_ps.policy.ppo.network import forward, initialise, log_softmax
from dynamix_ps.policy.ppo.normalise import Normaliser
from dynamix_ps.policy.ppo.policy_file import Spaces, StoredPolicy, load_policy, save_policy
from dynamix_ps.policy.ppo.reward import reward
from dynamix_ps.policy.ppo.rollout import Outcome, Step, to_batch
from dynamix_ps.policy.ppo.update import update
from dynamix_ps.policy.state import ClusterState, StateBuilder

ACTIONS = (-100, -25, 0, 25, 100)  # change of a worker's batch size, in samples (paper, IV-C)


class PpoPolicy:
    """Acts in windows that ran cleanly under the newest plan, and keeps the plan in all others.

    Learning: actions are drawn from the policy, outcomes collected, the normaliser goes on. Otherwise nothing
    changes; actions are still drawn if `explore`, else the likeliest is taken.
    """

    name = "ppo"

    def __init__(
        self, stored: StoredPolicy, ppo: Ppo, n_workers: int, rng: np.random.Generator, *, learn: bool, explore: bool
    ) -> None:
        self._params = stored.params
        self._adam = stored.adam
        self._normaliser = stored.normaliser
        self._spaces = stored.spaces
        self._provenance = dict(stored.provenance)
        self._ppo = ppo
        self._rng = rng
        self._learn = learn
        self._explore = explore
        self._states = StateBuilder(n_workers)
        self._decisions = 0
        self._pending: tuple[Step, tuple[int, ...]] | None = None  # the last decision and the sizes it asked for
        self._outcomes: list[Outcome] = []

    def decide(self, view: View) -> Decision:
        """New sizes: every reporting worker's size plus its action, within its bounds."""
        if not view.clean:
            return Decision(view.plan.batch_sizes)
        state = self._states.observe(view)
        raw = state.rows()
        if self._learn:
            self._normaliser = self._normaliser.updated(raw)
        rows = self._normaliser.apply(raw)
        present = np.array([worker is not None for worker in state.workers])
        result = forward(self._params, rows)
        log_probs = log_softmax(result.logits)
        actions = self._choose(log_probs)

        earned = self._settle(state, view, result.values, present)

        sizes = tuple(
            min(max(size + ACTIONS[actions[rank]], low), high) if present[rank] else size
            for rank, (size, (low, high)) in enumerate(zip(view.plan.batch_sizes, view.bounds, strict=True))
        )
        self._decisions += 1
        taken = log_probs[np.arange(len(actions)), actions]
        self._pending = (Step(self._decisions, rows, actions, taken, result.values, present), sizes)
        return Decision(sizes, earned)

    @property
    def update_due(self) -> bool:
        return len(self._outcomes) >= self._ppo.windows_per_update

    def update(self) -> Mapping[str, Any]:
        """Learn from the collected outcomes and forget them. `accepted` is 0 where the old weights were kept."""
        batch = to_batch(self._outcomes, self._ppo.gamma, self._ppo.gae_lambda)
        self._outcomes = []
        result = update(self._params, self._adam, batch, self._ppo, self._rng)
        self._params, self._adam = result.params, result.adam
        self._provenance["updates"] = int(self._provenance.get("updates", 0)) + int(result.accepted)
        return {"accepted": float(result.accepted), "updates": float(self._provenance["updates"]), **result.diagnostics}

    def save(self, file: Path) -> None:
        """Write the policy as it is now. Raises OSError."""
        stored = StoredPolicy(self._params, self._adam, self._normaliser, self._spaces, self._provenance)
        save_policy(file, stored)

    def _choose(self, log_probs: NDArray[np.floating]) -> NDArray[np.int64]:
        """One action per worker: drawn by inverting the distribution, or the likeliest."""
        if not self._explore:
            return np.asarray(log_probs.argmax(axis=1))
        below = np.exp(log_probs.astype(np.float64)).cumsum(axis=1)
        draw = self._rng.random((len(log_probs), 1)) * below[:, -1:]
        return np.asarray((draw >= below).sum(axis=1))

    def _settle(
        self,
        state: ClusterState,
        view: View,
        values: NDArray[np.floating],
        present: NDArray[np.bool_],
    ) -> float | None:
        """Credit the decision before with what this window earned: the mean reward, or None.

        Only if the plan that ran is the one it asked for. A decision whose sizes were never in force as it
        wanted them (observe mode, a restart) is dropped, not credited with somebody else's window.
        """
        pending, self._pending = self._pending, None
        if pending is None or pending[1] != view.plan.batch_sizes:
            return None
        rewards = np.array([reward(worker, self._ppo) if worker else 0.0 for worker in state.workers])
        both = present & pending[0].present
        if not both.any():
            return None
        if self._learn:
            self._outcomes.append(Outcome(pending[0], rewards, values, both))
        return float(rewards[both].mean())


def make_ppo(
    ppo: Ppo, n_workers: int, rng: np.random.Generator, *, learn: bool, resume: Path | None = None
) -> PpoPolicy:
    """The agent with fresh weights, those of `ppo.file`, or those that an earlier process of this run saved.

    Args:
        learn: whether this run can learn at all (its plans take effect); `ppo.learn` can still say no.

    Raises:
        PolicyError: a file is unusable, or nothing may be learned and no file says what was.
    """
    spaces = Spaces(NAMES, ACTIONS, ppo.hidden)
    if resume is not None:
        stored = load_policy(resume, spaces)
    elif ppo.file is not None:
        stored = load_policy(Path(ppo.file), spaces)
    elif not ppo.learn:
        raise PolicyError("policy.ppo: learn is false and no file is given; name a trained policy in policy.ppo.file")
    else:
        params = initialise(2 * len(NAMES), ppo.hidden, len(ACTIONS), rng)
        stored = StoredPolicy(
            params, AdamState.zero(params), Normaliser.empty(len(NAMES)), spaces, {"origin": "fresh", "updates": 0}
        )
    return PpoPolicy(stored, ppo, n_workers, rng, learn=learn and ppo.learn, explore=ppo.learn)
