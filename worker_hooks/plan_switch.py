"""All workers change plans at the same iteration (invariant 2), agreed in the gradient sum itself. Pure.

In each iteration every worker adds the version bits of the newest plan it holds to the trailer of the gradient
buffer. In the sum every bit count is 0 or N exactly if all N workers hold the same version; then, and only then, all
of them schedule that plan for the same iteration. No worker waits: a plan that has reached only some workers is not
unanimous yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

from dynamix_ps.config.schema import Keep
from dynamix_ps.messages import Plan
from dynamix_ps.rpc.plan_rules import LARGEST_VERSION
from dynamix_ps.shares import Bounds, shared_out, taken_in

VERSION_BITS = LARGEST_VERSION.bit_length()


@lru_cache
def version_bits(version: int) -> tuple[int, ...]:
    """The vote for a version: VERSION_BITS values of 0 or 1, lowest bit first."""
    if not 0 <= version <= LARGEST_VERSION:
        raise ValueError(f"plan version {version} is not in 0..{LARGEST_VERSION}")
    return tuple(version >> bit & 1 for bit in range(VERSION_BITS))


def agreed_version(bit_sums: Sequence[float], workers: int) -> int | None:
    """The version all `workers` voted for, or None if they did not all vote for the same."""
    version = 0
    for bit, votes in enumerate(bit_sums):
        if votes == workers:
            version |= 1 << bit
        elif votes:
            return None
    return version


class PlanSwitch:
    """Which plan is in force at which iteration.

    A plan agreed in the sum of iteration t takes effect at t + 1 + `lag`, where `lag` is how many batches
    are prepared ahead (their sizes are already fixed). Every worker must use the same lag; a worker may prepare fewer.

    Workers that are missing in a sum, or leave by it, get no samples from then on, with the same lag. Those that enter
    by it get some.

    Args:
        bounds: (smallest, largest) size of every worker; none: there are no bounds.
        keep: what stays where workers go. `global`: the global batch, so the others share what these had.
            `local`: the sizes of the others.
        slot_sizes: what each has by itself, compared with the others; empty: all alike.
        later: workers that are not there yet. `plan` has nothing for them.
    """

    def __init__(
        self,
        plan: Plan,
        lag: int = 0,
        bounds: Bounds | None = None,
        keep: Keep = "global",
        slot_sizes: Sequence[int] = (),
        later: Collection[int] = (),
    ) -> None:
        self.lag = lag
        self._bounds, self._keep = bounds, keep
        self._slot_sizes = slot_sizes or (1,) * len(plan.batch_sizes)
        self._without = set(later)  # workers that have no samples any more, or not yet
        self.newest_scheduled = plan
        self._held = plan
        self._scheduled = [(0, plan)]  # (first iteration, plan), rising; the first one is in force

    @property
    def held(self) -> Plan:
        """The newest plan that this worker holds, as the arbitrator made it."""
        return self._held

    def vote(self, newest: Plan | None) -> Plan:
        """The plan to vote for in this iteration: the newest one held. Never goes back to an older one."""
        if newest is not None and newest.version > self._held.version:
            self._held = newest
        return self._held

    def decide(self, iteration: int, agreed: int | None) -> None:
        """Schedule the plan that all workers agreed on in the sum of `iteration`, if it is a new one.

        An agreed version is always the one this worker voted for, because its own bits are in the sum.
        """
        if agreed is not None and agreed > self.newest_scheduled.version:
            self._schedule(iteration, self._held)
        while len(self._scheduled) > 1 and self._scheduled[1][0] <= iteration:
            del self._scheduled[0]

    def choose(self, iteration: int, sizes: tuple[int, ...]) -> None:
        """All workers have chosen these sizes in the sum of `iteration`: they are the next plan on all of them."""
        newest = self.newest_scheduled
        if sizes != newest.batch_sizes:
            self._held = replace(newest, version=newest.version + 1, batch_sizes=sizes)
            self._schedule(iteration, self._held)

    def go_without(self, iteration: int, ranks: Iterable[int]) -> None:
        """These workers are missing in the sum of `iteration`, or leave by it."""
        self._without.update(ranks)
        self._schedule(iteration, self.newest_scheduled)

    def take_in(self, iteration: int, ranks: Collection[int]) -> None:
        """These workers enter by the sum of `iteration`."""
        self._without.difference_update(ranks)
        self._put(iteration, self._with(self.newest_scheduled, ranks))

    def packed(self) -> dict[str, Any]:
        """In JSON's types, for a worker that enters."""
        return {
            "held": asdict(self._held),
            "scheduled": [[first, asdict(plan)] for first, plan in self._scheduled],
            "without": sorted(self._without),
        }

    def take_over(self, packed: Mapping[str, Any]) -> None:
        """Go on from what `packed` returned on another worker."""
        self._held = plan_of(packed["held"])
        self._scheduled = [(first, plan_of(plan)) for first, plan in packed["scheduled"]]
        self._without = set(packed["without"])
        self.newest_scheduled = self._scheduled[-1][1]

    def _allowed(self, total: int, count: int, without: Collection[int]) -> Bounds:
        bounds = self._bounds or [(0, total)] * count
        return [(0, 0) if rank in without else own for rank, own in enumerate(bounds)]

    def _schedule(self, iteration: int, plan: Plan) -> None:
        came = [rank for rank, (low, _) in enumerate(self._bounds or ()) if low and self._lacks(plan, rank)]
        if self._without:
            sizes = [0 if rank in self._without else size for rank, size in enumerate(plan.batch_sizes)]
            total = sum(sizes) if self._keep != "global" and any(sizes) else plan.global_batch
            plan = shared_out(plan, total, sizes, self._allowed(total, len(sizes), {*self._without, *came}))
        self._put(iteration, self._with(plan, came) if came else plan)

    def _lacks(self, plan: Plan, rank: int) -> bool:
        """Whether a worker that is there has nothing: the plan was made before it came."""
        return not plan.batch_sizes[rank] and rank not in self._without

    def _with(self, plan: Plan, ranks: Collection[int]) -> Plan:
        bounds = self._allowed(plan.global_batch * (1 + len(ranks)), len(plan.batch_sizes), self._without)
        return taken_in(plan, ranks, self._slot_sizes, bounds, self._keep)

    def _put(self, iteration: int, plan: Plan) -> None:
        self.newest_scheduled = plan
        self._scheduled.append((iteration + 1 + self.lag, plan))

    def plan_at(self, iteration: int) -> Plan:
        """The plan in force at `iteration`, which may be up to `lag` iterations ahead of the last sum's next one."""
        return next(plan for first, plan in reversed(self._scheduled) if first <= iteration)


def plan_of(packed: Mapping[str, Any]) -> Plan:
    """From JSON's types."""
    return Plan(**{**packed, "batch_sizes": tuple(packed["batch_sizes"])})
