"""What the agent did and which rewards followed, kept until an update uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.policy.ppo.actor_critic import Acted
from dynamix_ps.policy.ppo.learning.gae import advantages
from dynamix_ps.policy.ppo.network import Array
from dynamix_ps.policy.ppo.settings import PpoSettings


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """Rows for an update, actors and steps mixed; all arrays have the same length."""

    rows: Array
    actions: NDArray[np.int64]
    log_probs: Array
    advantages: Array
    returns: Array
    values: Array
    allowed: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.actions)

    def take(self, index: NDArray[np.int64]) -> RolloutBatch:
        """Some of the rows."""
        return RolloutBatch(
            self.rows[index],
            self.actions[index],
            self.log_probs[index],
            self.advantages[index],
            self.returns[index],
            self.values[index],
            None if self.allowed is None else self.allowed[index],
        )

    @staticmethod
    def joined(several: Sequence[RolloutBatch]) -> RolloutBatch:
        """All rows of several batches; either all or none of them have `allowed`."""
        masks = [batch.allowed for batch in several if batch.allowed is not None]
        return RolloutBatch(
            np.concatenate([batch.rows for batch in several]),
            np.concatenate([batch.actions for batch in several]),
            np.concatenate([batch.log_probs for batch in several]),
            np.concatenate([batch.advantages for batch in several]),
            np.concatenate([batch.returns for batch in several]),
            np.concatenate([batch.values for batch in several]),
            np.concatenate(masks) if masks else None,
        )


class Rollout:
    """Steps of the same N actors, one after the other. Keeps the arrays it is given; do not change them."""

    def __init__(self, settings: PpoSettings) -> None:
        self._settings = settings
        self._acted: list[Acted] = []
        self._rewards: list[Array] = []
        self._cut: list[NDArray[np.bool_]] = []
        self._bootstrap: list[Array] = []
        self._present: list[NDArray[np.bool_]] = []

    def __len__(self) -> int:
        """Steps so far."""
        return len(self._acted)

    def add(
        self,
        acted: Acted,
        rewards: Array,
        cut: NDArray[np.bool_],
        bootstrap: Array,
        present: NDArray[np.bool_],
    ) -> None:
        """Add one step and its result; all arrays have shape (N,).

        Args:
            cut: the episode ended after this step; later rewards do not count for it.
            bootstrap: the value of what follows, read only where `cut`: the critic's value of the last state if the
                episode was truncated, 0 if it terminated.
            present: the actor was present before and after the step. If not, the learner skips this step, and
                earlier steps end there.
        """
        self._acted.append(acted)
        self._rewards.append(rewards)
        self._cut.append(cut)
        self._bootstrap.append(bootstrap)
        self._present.append(present)

    def batch(self, last_values: Array | None, reward_unit: float = 1.0) -> RolloutBatch:
        """Everything so far as one batch; `last_values` (N,) are the values of the states after the last step.

        They may be None if all episodes were cut after it. Rewards are divided by `reward_unit`, in which values count.

        `clip`: advantages by GAE, normalised to mean 0 and deviation 1 over the batch. `simple`: advantages and
        returns are the plain discounted rewards up to the end of the episode or of the rollout.
        """
        settings = self._settings
        present = np.stack(self._present)
        rewards = np.stack(self._rewards) / reward_unit
        linked = ~np.stack(self._cut)
        linked[:-1] &= present[1:]
        if settings.learner == "simple":
            values = np.zeros(rewards.shape)
            gains = advantages(rewards, values, values, linked, settings.gamma, 1.0)[present]
        else:
            values = np.stack([acted.values for acted in self._acted]).astype(np.float64)
            last = np.zeros_like(values[0]) if last_values is None else last_values
            following = np.concatenate([values[1:], last[None]])
            after = np.where(self._cut, np.stack(self._bootstrap), following)
            gains = advantages(rewards, values, after, linked, settings.gamma, settings.gae_lambda)[present]
        known = values[present]
        returns = gains + known
        if settings.learner == "clip" and len(gains) > 1:
            gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        allowed = [acted.allowed for acted in self._acted if acted.allowed is not None]
        return RolloutBatch(
            rows=np.stack([acted.rows for acted in self._acted])[present],
            actions=np.stack([acted.actions for acted in self._acted])[present],
            log_probs=np.stack([acted.log_probs for acted in self._acted])[present],
            advantages=gains.astype(np.float32),
            returns=returns.astype(np.float32),
            values=known.astype(np.float32),
            allowed=np.stack(allowed)[present] if allowed else None,
        )
