"""The places of an elastic job's workers: which are empty, and plans of those that are there. Pure.

Workers find the same in their sums, some iterations earlier (worker_hooks/plan_switch.py), with the same rules
(dynamix_ps/shares.py).
"""

from __future__ import annotations

from dynamix_ps.config.schema import Config
from dynamix_ps.messages import Plan
from dynamix_ps.rpc.plan_rules import Bounds
from dynamix_ps.shares import left_to_others, taken_in


class WorkerPlaces:
    """The places of one job; those of workers that come later are empty first.

    Attributes:
        empty: ranks of the workers that are not there.
    """

    def __init__(self, config: Config, plan: Plan) -> None:
        """`plan`: the newest one. Whoever must have samples and has none in it is not there."""
        self._keep = config.elastic.keep
        self._slot_sizes = [worker.batch for worker in config.cluster.workers]
        self._bounds = tuple(map(config.bounds, range(len(self._slot_sizes))))
        unplanned = (rank for rank, size in enumerate(plan.batch_sizes) if not size)
        self.empty = {rank for rank in unplanned if self._bounds[rank][0] or rank in config.later}

    def within(self, bounds: Bounds) -> Bounds:
        """`bounds`, and nothing for empty places."""
        return tuple((0, 0) if rank in self.empty else own for rank, own in enumerate(bounds))

    def without_empty(self, plan: Plan) -> Plan:
        """`plan`, in which the others share what it has for empty places; nothing for all if nobody is there."""
        if not any(plan.batch_sizes[rank] for rank in self.empty):
            return plan
        return left_to_others(plan, self.empty, self._bounds, self._keep)

    def taking_in(self, rank: int, plan: Plan) -> Plan:
        """`plan` with a worker that has come into an empty place: what it gets is what the workers have given it."""
        self.empty.discard(rank)
        others = {other for other, size in enumerate(plan.batch_sizes) if size} - self.empty - {rank}
        if others and not plan.batch_sizes[rank]:
            plan = taken_in(plan, [rank], self._slot_sizes, self.within(self._bounds), self._keep)
        return self.without_empty(plan)
