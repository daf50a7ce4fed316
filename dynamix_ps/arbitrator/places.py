"""The places of workers: which process has one, which places are empty, and the sizes of those that are there. Pure.

In an elastic job, workers find the same plans in their sums some iterations earlier
(worker_hooks/planning/plan_switch.py), with the same rules (dynamix_ps/shares.py). In a job that is not elastic no
place becomes empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dynamix_ps.arbitrator.registry import Registry
from dynamix_ps.config.schema import Config
from dynamix_ps.messages import Plan, WindowRecord
from dynamix_ps.rpc.plan_rules import Bounds
from dynamix_ps.shares import left_to_others, taken_in


class WorkerPlaces:
    """The places of one job. Places of workers that join later are empty first.

    Attributes:
        empty: ranks of places without a worker.
        leases: of the workers; no decision waits for an empty place.
    """

    def __init__(self, config: Config, plan: Plan, retired: Iterable[tuple[int, str]] = ()) -> None:
        """
        Args:
            plan: the newest plan. A worker that must have samples and has none in this plan is not there.
            retired: processes that were replaced, by rank and incarnation.
        """
        self._keep = config.elastic.keep
        self._is_elastic = config.is_elastic
        self._slot_sizes = [worker.batch for worker in config.cluster.workers]
        self._bounds = tuple(map(config.bounds, range(len(self._slot_sizes))))
        unplanned = (rank for rank, size in enumerate(plan.batch_sizes) if not size)
        self.empty = {rank for rank in unplanned if self._bounds[rank][0] or rank in config.later}
        self.leases = Registry(len(self._slot_sizes), config.timeouts.lease_s, retired)
        for rank in self.empty:
            self.leases.lose(rank)
        self._leaving: set[int] = set()  # workers that have said so
        self._departed: set[int] = set()  # workers whose process has left the job

    def register(self, rank: int, incarnation: str, now_s: float) -> bool:
        """A process takes this place. Returns whether it is new here. Raises what `Registry.register` raises."""
        is_new = self.leases.register(rank, incarnation, now_s)
        if is_new:
            self._departed.discard(rank)
            if rank in self._leaving:
                self._leaving.clear()  # all have left a training that was over, and register for the next one
        return is_new

    def leave(self, rank: int, incarnation: str) -> bool:
        """A worker says that it leaves. Returns whether that is new. Raises what `Registry.leave` raises."""
        is_new = self.leases.leave(rank, incarnation)
        if is_new and self._is_elastic:
            self._leaving.add(rank)
        return is_new

    def lose(self, rank: int) -> None:
        """The job goes on without this worker: its place is empty."""
        self.leases.lose(rank)
        self.empty.add(rank)

    def depart(self, rank: int) -> None:
        """The process of this worker has left the job. Its place is empty from the first window without it on."""
        self.leases.lose(rank)
        self._departed.add(rank)

    def vacate(self, records: Sequence[WindowRecord | None]) -> bool:
        """Empty the places of workers that leave, or have left, if a window has no record of any of them.

        Then the other workers go on without them. Returns whether there are such workers.
        """
        left = self._departed | self._leaving
        if not left or any(records[rank] is not None for rank in left):
            return False
        self.empty.update(left)
        return True

    def within(self, bounds: Bounds) -> Bounds:
        """`bounds`, with nothing for empty places."""
        return tuple((0, 0) if rank in self.empty else own for rank, own in enumerate(bounds))

    def without_empty(self, plan: Plan) -> Plan:
        """`plan`, with the samples of empty places given to the others; with no samples at all if nobody is there."""
        if not any(plan.batch_sizes[rank] for rank in self.empty):
            return plan
        return left_to_others(plan, self.empty, self._bounds, self._keep)

    def taking_in(self, rank: int, plan: Plan) -> Plan:
        """`plan` with a worker in an empty place. It gets the samples that the workers have given it."""
        self.empty.discard(rank)
        others = {other for other, size in enumerate(plan.batch_sizes) if size} - self.empty - {rank}
        if others and not plan.batch_sizes[rank]:
            plan = taken_in(plan, [rank], self._slot_sizes, self.within(self._bounds), self._keep)
        return self.without_empty(plan)
