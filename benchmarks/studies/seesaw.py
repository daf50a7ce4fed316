"""Seesaw (arXiv 2510.14717): where a schedule would lower the learning rate, the batch grows. In a cluster file:

    lr: decide
    lr_rule: sqrt     # for Adam; linear for SGD
    policy: {name: "benchmarks.studies.seesaw:SeesawPolicy"}

Under `lr: decide` the rule lowers the rate linearly to the end of training, in steps (policy/rate/): by a factor d in
all. This policy makes the global batch B_0 / d, and the learning-rate rule raises the rate along with it. So with
`linear` the rate stays and the batch grows by 1/d, as in the paper for SGD; with `sqrt` the rate falls by the root of d
only, as in the paper for Adam. The batch is split so that all workers finish together.
"""

from __future__ import annotations

from dynamix_ps.policy.base import Decision, Policy, View
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.window_arrays import arrays_of

SWITCH = 1.05  # times the computing time of the best split; as `goodput` has it


class SeesawPolicy(Policy):
    """The global batch grows as the rate of the schedule falls."""

    name = "seesaw"

    def __init__(self, n_workers: int) -> None:
        self._model = ClusterModel(n_workers)

    def decide(self, view: View) -> Decision:
        """New sizes where the global batch changes or another split is quicker by far; otherwise the present ones."""
        keep, model = Decision(view.plan.batch_sizes), self._model
        if not view.clean:
            return keep
        window = arrays_of(view)
        model.observe(window)
        known = model.compute.known
        if not known.any():
            return keep
        total, coming = round(float(window.reference_batch) / view.plan.lr_factor), model.compute.coming
        present_s = coming.seconds(window.planned)[known].max()
        if total == int(window.global_batch) and present_s <= SWITCH * model.balanced_s(total, coming):
            return keep
        return Decision(tuple(model.shares(total, coming).tolist()))
