"""The newest plan of a run, and how workers hear of it. Used in one event loop."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncGenerator

from dynamix_ps.arbitrator.planner import next_plan
from dynamix_ps.messages import Plan
from dynamix_ps.rpc.refusals import TooManyStreamsError
from dynamix_ps.run_record.json_lines import Journal

MAX_STREAMS_PER_WORKER = 4  # a worker uses one; its earlier streams may not have ended yet


class PlanPublication:
    """Publishes the plans of decisions, and those that workers have already made or hold.

    Attributes:
        plan: the newest plan.
        newest_version: the highest version that a journaled decision has used.
    """

    def __init__(self, plan: Plan, newest_version: int, journal: Journal) -> None:
        self.plan = plan
        self.newest_version = max(newest_version, plan.version)
        self._journal = journal
        self._held: dict[int, Plan] = {}  # the newest plan a worker held when it registered, by rank
        self._streams: Counter[int] = Counter()  # open ones, by rank
        self._changed = asyncio.Event()

    def newest_version_of(self, rank: int) -> int:
        """The highest version of a plan that this registered worker can hold."""
        return max(self.newest_version, self._held[rank].version)

    def publish(self, plan: Plan) -> None:
        """Make this the newest plan; every stream yields it."""
        self.plan = plan
        self.newest_version = max(self.newest_version, plan.version)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def resize(self, sizes: tuple[int, ...]) -> None:
        """Publish a plan with these sizes, which the workers have already given themselves."""
        plan = next_plan(sizes, self.plan, self.newest_version)
        if plan is not None and any(plan.batch_sizes):
            self._adopt(plan)

    def hold(self, rank: int, held: Plan) -> None:
        """A worker registers with the newest plan that it holds. Adopt plans that are newer than what is published.

        A plan is adopted if its version is at most one above what is known: from the journal, or from another worker.
        Workers that resume from a checkpoint hold the same plan. A version far above all others is wrong, and would
        leave no versions for later plans.
        """
        self._held[rank] = held
        if held.version == self.plan.version == 0 and held != self.plan:  # a static policy has first sizes of its own
            self.publish(held)
        newer = {other: plan for other, plan in self._held.items() if plan.version > self.plan.version}
        for other, plan in sorted(newer.items(), key=lambda item: item[1].version):
            others = [plan.version for one, plan in self._held.items() if one != other]
            known = max([self.newest_version, *others]) if len(plan.batch_sizes) > 1 else plan.version
            if plan.version <= known + 1:
                self._adopt(plan)

    def _adopt(self, plan: Plan) -> None:
        self._journal.write("adopted", **dataclasses.asdict(plan))
        self.publish(plan)

    async def stream(self, rank: int, newest_version: int) -> AsyncGenerator[Plan, None]:
        """Every plan newer than `newest_version`, as soon as it exists; a slow reader skips plans.

        Raises TooManyStreamsError.
        """
        if self._streams[rank] >= MAX_STREAMS_PER_WORKER:
            raise TooManyStreamsError(f"worker {rank} has {MAX_STREAMS_PER_WORKER} streams of plans already")
        self._streams[rank] += 1
        try:
            while True:
                changed = self._changed
                if self.plan.version > newest_version:
                    newest_version = self.plan.version
                    yield self.plan
                else:
                    await changed.wait()
        finally:
            self._streams[rank] -= 1
