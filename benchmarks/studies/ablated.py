"""A policy with one of its decisions switched off: what that decision is worth. In a cluster file:

policy:
  name: benchmarks.studies.ablated:AblatedPolicy
  options: {policy: {name: ppo}, without: shares}

without: batch    the global batch stays that of the first sizes; the policy splits it
without: shares   all workers have equal shares of the policy's global batch

`name: benchmarks.studies.ablated:WithoutAnticipation` is `ppo` whose model looks neither for recurring work nor for
tiles.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dynamix_ps.apportion import apportion
from dynamix_ps.config import schema
from dynamix_ps.policy.base import Decision, InnerLearner, Policy, View, ask
from dynamix_ps.policy.evidence.weighed import WeighedPolicy
from dynamix_ps.policy.learned.policy import make_ppo
from dynamix_ps.policy.registry import make_policy
from dynamix_ps.policy.safety_net import SafetyNet

PARTS = ("batch", "shares")


class AblatedPolicy(Policy):
    """Asks another policy, and takes one part of its answers back."""

    def __init__(
        self,
        config: schema.Config,
        n_workers: int,
        rng: np.random.Generator,
        policy: Mapping[str, Any],
        without: str,
    ) -> None:
        """Raises ValueError for a part that no decision has, and PolicyError if the policy cannot be made."""
        if without not in PARTS:
            raise ValueError(f"without: got {without!r}, expected one of {', '.join(PARTS)}")
        asked = config.model_copy(update={"policy": schema.PolicySection.model_validate(policy)})
        self._policy, self._without = make_policy(asked, n_workers, rng), without
        self.name = f"{self._policy.name} without {without}"

    def decide(self, view: View) -> Decision:
        """The policy's answer without that part. Sizes stay where the answer keeps them."""
        answer = ask(self._policy, view)
        sizes = tuple(answer.batch_sizes)
        if sizes == view.plan.batch_sizes:
            return answer
        if self._without == "batch":
            first = view.reference_batch or view.plan.global_batch
            return dataclasses.replace(answer, batch_sizes=_split(first, sizes, view))
        return dataclasses.replace(answer, batch_sizes=_split(sum(sizes), [1] * len(sizes), view))


class WithoutAnticipation(InnerLearner, Policy):
    """`ppo`, with its safety net and the evidence that its plans need, and a model without effects of real machines."""

    def __init__(self, config: schema.Config, n_workers: int, rng: np.random.Generator) -> None:
        chosen = config.policy
        learned = make_ppo(chosen.ppo, n_workers, rng, learn=config.mode == "adapt", effects=False)
        super().__init__(WeighedPolicy(SafetyNet(learned, chosen.safety), n_workers))

    def decide(self, view: View) -> Decision:
        """The answer of the policy inside."""
        return self.inner.decide(view)


def _split(total: int, weights: Sequence[float], view: View) -> tuple[int, ...]:
    """The nearest global batch that the bounds allow, in proportion to the weights."""
    low, high = zip(*view.bounds, strict=True)
    return tuple(apportion(min(max(total, sum(low)), sum(high)), weights, low, high))
