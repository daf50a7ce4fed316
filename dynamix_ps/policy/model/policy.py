"""The plan that follows from the model of the cluster: the advised global batch, split so that all finish together.

Nothing in it is learned. The policy `ppo` corrects this plan (policy/learned/structured.py).
"""

from __future__ import annotations

from dynamix_ps.policy.base import Decision, Policy, View
from dynamix_ps.policy.model.advice import Advisor, advised_batch, balanced_sizes, total_within
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.model.network_times import network_of
from dynamix_ps.policy.window_arrays import arrays_of


class ModelPolicy(Policy):
    """Follows the advice after windows that ran cleanly under the newest plan, and keeps the plan after all others."""

    name = "model"

    def __init__(self, n_workers: int) -> None:
        self.model = ClusterModel(n_workers)
        self._advisor = Advisor(self.model)

    def decide(self, view: View) -> Decision:
        """The sizes that the model advises."""
        if not view.clean:
            return Decision(view.plan.batch_sizes)
        window, model = arrays_of(view), self.model
        model.observe(window)
        advice = self._advisor.observe(window, network_of(window, model.compute_s), model.noise.expected)
        total = total_within(window, advised_batch(window, advice[..., 0]))
        sizes = model.filled(balanced_sizes(window, total, self._advisor))
        return Decision(tuple(sizes.tolist()))
