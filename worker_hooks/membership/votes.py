"""What the sums of one training decide about its members, and so about its plans. Pure, and the same on all workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dynamix_ps.membership.messages import Process
from worker_hooks.membership.departures import Departures
from worker_hooks.membership.entries import Entries
from worker_hooks.planning.plan_switch import PlanSwitch


class Departed(NamedTuple):
    """Who leaves by a sum.

    Attributes:
        staying: slots of those in the sum that do not leave.
        gone: slots of those whose last sum it was.
    """

    staying: Sequence[int]
    gone: Sequence[int]


class MembershipVotes:
    """Those of one training.

    Args:
        switch: its plans.
        least: workers that stay at least.

    Attributes:
        entries: which workers and servers enter, and with which iteration.
        departures: which workers leave on notice, and with which sum.
    """

    def __init__(self, switch: PlanSwitch, least: int) -> None:
        self._switch = switch
        self.entries, self.departures = Entries(), Departures(least)

    def lose(self, iteration: int, missing: Collection[int]) -> None:
        """After the sum of `iteration`, before `leave`: these are not in it. In their slots others may be awaited."""
        self._switch.go_without(iteration, set(missing) - self.entries.awaited(iteration))

    def leave(self, iteration: int, first_due: int, present: Collection[int], votes: Collection[int]) -> Departed:
        """After the sum of `iteration`, which is of batches from iteration `first_due` on: follow the votes to leave.

        Args:
            present: slots of the workers in the sum.
            votes: those of them that vote to leave.
        """
        if leaving := self.departures.decide(iteration + 1 + self._switch.lag, present, votes):
            self._switch.go_without(iteration, leaving)
        return Departed(self.departures.staying(present), self.departures.gone_after(first_due, present))

    def enter(self, iteration: int, agreed: int | None, offered: Mapping[int, Process]) -> None:
        """After the sum of `iteration`, behind `leave`: follow the votes on entries.

        Args:
            agreed: version that all have voted for.
            offered: processes by version, as far as this worker has heard.
        """
        entering = self.entries.decide(iteration + 1 + self._switch.lag, agreed, offered)
        if slots := [one.slot for one in entering if one.role == "worker"]:
            self._switch.take_in(iteration, slots)
            self.departures.forget(slots)

    def packed(self) -> dict[str, Any]:
        """In JSON's types, for a worker that enters."""
        return {
            "plans": self._switch.packed(),
            "entries": self.entries.packed(),
            "departures": self.departures.packed(),
        }

    def take_over(self, packed: Mapping[str, Any]) -> None:
        """Go on from what `packed` returned on another worker."""
        self._switch.take_over(packed["plans"])
        self.entries.take_over(packed["entries"])
        self.departures.take_over(packed["departures"])
