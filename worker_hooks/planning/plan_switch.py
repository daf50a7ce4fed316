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
from dynamix_ps.messages import LARGEST_VERSION, Plan
from dynamix_ps.shares import Bounds, left_to_others, taken_in

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
    if not any(bit_sums):
        return version
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
    by it get some. The arbitrator hears of both later than the sums tell. So a plan may be of other workers than those
    that are there: what it has for others is shared out, and who is there and is not in it gets its part.

    Args:
        bounds: (smallest, largest) size of every worker; none: there are no bounds.
        keep: what stays where workers go. `global`: the global batch, so the others share what these had.
            `local`: the sizes of the others.
        slot_sizes: what each has by itself, compared with the others; empty: all alike.
        later: workers that are not there yet. `plan` has nothing for them, nor for others that are not there.
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
        absent = {rank for rank, (low, _) in enumerate(bounds or ()) if low and not plan.batch_sizes[rank]}
        self._without = {*later, *absent}  # workers that have no samples any more, or not yet
        self._entered: set[int] = set()  # of those that are there: no plan that was decided has them yet
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
            self._follow(iteration, self._held)
        while len(self._scheduled) > 1 and self._scheduled[1][0] <= iteration:
            del self._scheduled[0]

    def choose(self, iteration: int, sizes: tuple[int, ...]) -> None:
        """All workers have chosen these sizes in the sum of `iteration`: they are the next plan on all of them."""
        newest = self.newest_scheduled
        if sizes != newest.batch_sizes:
            self._held = replace(newest, version=newest.version + 1, batch_sizes=sizes)
            self._follow(iteration, self._held)

    def go_without(self, iteration: int, ranks: Iterable[int]) -> None:
        """These workers are missing in the sum of `iteration`, or leave by it."""
        self._without.update(ranks)
        self._entered -= self._without
        self._schedule(iteration, self.newest_scheduled)

    def take_in(self, iteration: int, ranks: Collection[int]) -> None:
        """These workers enter by the sum of `iteration`."""
        self._without.difference_update(ranks)
        self._entered.update(ranks)
        self._put(iteration, self._with(self.newest_scheduled, ranks))

    def packed(self) -> dict[str, Any]:
        """In JSON's types, for a worker that enters."""
        return {
            "held": asdict(self._held),
            "scheduled": [[first, asdict(plan)] for first, plan in self._scheduled],
            "without": sorted(self._without),
            "entered": sorted(self._entered),
        }

    def take_over(self, packed: Mapping[str, Any]) -> None:
        """Go on from what `packed` returned on another worker."""
        self._held = plan_of(packed["held"])
        self._scheduled = [(first, plan_of(plan)) for first, plan in packed["scheduled"]]
        self._without, self._entered = set(packed["without"]), set(packed["entered"])
        self.newest_scheduled = self._scheduled[-1][1]

    def _follow(self, iteration: int, plan: Plan) -> None:
        self._schedule(iteration, plan)
        self._entered = {rank for rank in self._entered if not plan.batch_sizes[rank]}

    def _schedule(self, iteration: int, plan: Plan) -> None:
        had_some = any(size for rank, size in enumerate(plan.batch_sizes) if rank not in self._without)
        came = [rank for rank in range(len(plan.batch_sizes)) if self._lacks(plan, rank)] if had_some else []
        if self._without:
            plan = left_to_others(plan, {*self._without, *came}, self._bounds, self._keep)
        self._put(iteration, self._with(plan, came) if came else plan)

    def _lacks(self, plan: Plan, rank: int) -> bool:
        """Whether a worker that is there has nothing because the plan was made before it came.

        A policy may give a worker nothing where the bounds allow it, once its plans know the worker.
        """
        if plan.batch_sizes[rank] or rank in self._without:
            return False
        return rank in self._entered or (self._bounds is not None and self._bounds[rank][0] > 0)

    def _with(self, plan: Plan, ranks: Collection[int]) -> Plan:
        own = self._bounds or [(0, plan.global_batch * (1 + len(ranks)))] * len(plan.batch_sizes)
        bounds = [(0, 0) if rank in self._without else one for rank, one in enumerate(own)]
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
