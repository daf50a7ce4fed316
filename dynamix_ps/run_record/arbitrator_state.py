"""The arbitrator of a run so far: its plans, which workers applied them, and the safety net. Updated by `RunState`."""

from __future__ import annotations

from collections.abc import Sequence

from dynamix_ps.run_record.json_lines import Line
from dynamix_ps.run_record.model import PlanState, safety_net_text
from dynamix_ps.run_record.worker_states import WorkerStates


class ArbitratorState:
    """Built from the arbitrator's journal, and from the lines of `workers` that apply plans."""

    def __init__(self, workers: WorkerStates) -> None:
        self._workers = workers
        self.prometheus: str | None = None  # address of the arbitrator's endpoint
        self.plans: dict[int, PlanState] = {}
        self.observed: list[PlanState] = []
        self.plan_version = 0
        self.fallbacks = 0  # times the safety net took over from the policy
        self.fallback_windows = 0  # decisions it made in the policy's place
        self._starts = 0
        self.restarts = 0

    @property
    def safety_net(self) -> str:
        """How often and how long the safety net acted, in words; empty if it never did."""
        return safety_net_text(self.fallbacks, self.fallback_windows) if self.fallbacks else ""

    def applied_plans(self) -> list[PlanState]:
        """Plans that every worker applied that is there, oldest first."""
        there = {worker.rank for worker in self._workers.there}
        whole = [plan for plan in self.plans.values() if plan.applied_by and plan.applied_by >= there]
        return sorted(whole, key=lambda plan: plan.version)

    def started(self, line: Line) -> None:
        self._starts += 1
        self.restarts = max(self._starts - 1, line.get("restarts") or 0)

    def serves_prometheus(self, line: Line) -> None:
        self.prometheus = line["address"]

    def plan(self, line: Line) -> None:
        self.kept(line)
        known = self.plans.get(line["version"])
        plan = self._published(line)
        if known is not None:  # a worker's line was read first
            plan.iteration, plan.applied_s, plan.applied_by = known.iteration, known.applied_s, known.applied_by
        self.plans[plan.version] = plan

    def plan_observed(self, line: Line) -> None:
        self.kept(line)
        self.observed.append(self._published(line))

    def kept(self, line: Line) -> None:
        self.fallback_windows += bool(line.get("fallback"))

    def fell_back(self, line: Line) -> None:
        self.fallbacks += 1

    def plan_applied(self, line: Line) -> None:
        version, sizes = line["version"], self._of_every_worker(line["batch_sizes"])
        worker = self._workers.of(line)
        worker.previous_batch_size, worker.batch_size = worker.batch_size, sizes[worker.rank]
        self.plan_version = max(self.plan_version, version)
        if version == 0:
            return
        plan = self.plans.setdefault(version, PlanState(version, sizes))
        plan.iteration = line["iteration"]
        plan.applied_by.add(worker.rank)
        plan.applied_s = max(plan.applied_s or 0.0, line["time_s"])

    def _published(self, line: Line) -> PlanState:
        proposed: Sequence[int] | None = line.get("proposed")
        return PlanState(
            version=line["version"],
            batch_sizes=self._of_every_worker(line["batch_sizes"]),
            window=line.get("window"),
            proposed=None if proposed is None else self._of_every_worker(proposed),
            reward=line.get("reward"),
            decision_ms=line.get("decision_ms"),
            published_s=line.get("time_s"),
        )

    def _of_every_worker(self, sizes: Sequence[int]) -> tuple[int, ...]:
        if len(sizes) != len(self._workers):
            raise ValueError(f"{len(sizes)} batch sizes are there, of {len(self._workers)} workers")
        return tuple(sizes)
