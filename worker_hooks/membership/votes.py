"""What the sums of one training decide about its members, and so about its plans. Pure, and the same on all workers.

Around each sum

    1. `due`: who enters with it. `take_in` them; each gets what it lacks from the worker that it follows
    2. `unfollowing`: who begins to follow this worker
    3. the trailer of this worker has its `vote`, and whether it wants to leave
    4. `lose`, `leave` and `enter` do what the sum says
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol

from dynamix_ps.membership.known_members import Planned
from dynamix_ps.membership.messages import Process
from worker_hooks.membership.departures import Departures
from worker_hooks.membership.entries import Entries
from worker_hooks.membership.newcomers import G, Newcomers
from worker_hooks.planning.plan_switch import PlanSwitch


class VotingMember(Protocol):
    """This worker as a member of the job: `dynamix_ps/membership/worker.py`, or what is around it."""

    def offered(self) -> Mapping[int, Process]:
        """Who may enter, by version of the entry."""
        ...

    def others_left(self, slots: Collection[int]) -> None:
        """The sum that is complete was the last one of these workers."""
        ...

    def take_in(self, entering: Collection[Process]) -> Planned:
        """These are in the coming sum."""
        ...


class Departed(NamedTuple):
    """Who leaves by a sum.

    Attributes:
        staying: slots of those in the sum that do not leave.
        gone: slots of those whose last sum it was.
    """

    staying: Sequence[int]
    gone: Sequence[int]


class MembershipVotes(Generic[G]):
    """Those of one training.

    Args:
        member: this worker.
        switch: the plans.
        least: workers that stay at least.
        are_followed: newcomers follow before they enter.
        follows: this worker is in no sum yet. It takes those of the others, and does the same as they do.

    Attributes:
        entries: which workers and servers enter, and with which iteration.
        departures: which workers leave on notice, and with which sum.
        newcomers: those that follow this worker or another one.
        told: the entries that the others know, where this worker follows them.
    """

    def __init__(
        self, member: VotingMember, switch: PlanSwitch, least: int, are_followed: bool = False, follows: bool = False
    ) -> None:
        self._member, self.switch, self.are_followed, self.follows = member, switch, are_followed, follows
        self.entries, self.departures = Entries(), Departures(least)
        self.newcomers: Newcomers[G] = Newcomers()
        self.told: Mapping[int, Process] = {}

    @property
    def offered(self) -> Mapping[int, Process]:
        """Who may enter, by version of the entry, as far as the sums may decide on it."""
        return self.told if self.follows else self._member.offered()

    # Before a sum.

    def take_in(self, entering: Collection[Process], leads: bool) -> tuple[Planned, dict[Process, G | None]]:
        """These are in the coming sum. Returns those that get what they lack from this worker, and what gives it."""
        planned = self._member.take_in(entering)
        return planned, self.newcomers.enter([one for one in entering if one.role == "worker"], leads)

    def is_there(self, newcomer: Process, giver: G | None, planned: Planned) -> bool:
        """Whether one that `take_in` returned can get what it lacks: the last part of it, or the whole state.

        If not, it is gone, or a decision is without it.
        """
        return newcomer in planned.workers if giver is None else not giver.is_over

    def unfollowing(self, leads: bool) -> list[Process]:
        """Those that are to follow this worker from now on."""
        if not (leads and self.are_followed):
            return []
        return self.newcomers.unfollowing(self._member.offered(), self.entries.version)

    def vote(self, leads: bool, takes_in: bool = True) -> int:
        """The newest entry that this worker votes for. Who follows it, or will, must have caught up.

        `takes_in`: this training can take workers in.
        """
        held = self.offered
        if self.are_followed:
            held = self.newcomers.may_be_voted_in(held, self.entries.version, leads)
        return self.entries.vote(held, takes_in)

    # After the sum of `iteration`, in this order.

    def lose(self, iteration: int, missing: Collection[int]) -> None:
        """These are not in it. In their slots others may be awaited."""
        self.switch.go_without(iteration, set(missing) - self.entries.awaited(iteration))

    def leave(self, iteration: int, first_due: int, present: Collection[int], votes: Collection[int]) -> Departed:
        """Follow the votes to leave.

        Args:
            first_due: the sum is of batches from this iteration on.
            present: slots of the workers in the sum.
            votes: those of them that vote to leave.
        """
        if leaving := self.departures.decide(iteration + 1 + self.switch.lag, present, votes):
            self.switch.go_without(iteration, leaving)
        departed = Departed(self.departures.staying(present), self.departures.gone_after(first_due, present))
        if departed.staying and departed.gone and not self.follows:  # who follows learns who is there when it enters
            self._member.others_left(departed.gone)
        return departed

    def enter(self, iteration: int, agreed: int | None) -> None:
        """Follow the votes on entries. `agreed`: the version that all have voted for."""
        entering = self.entries.decide(iteration + 1 + self.switch.lag, agreed, self.offered)
        if slots := [one.slot for one in entering if one.role == "worker"]:
            self.switch.take_in(iteration, slots)
            self.departures.forget(slots)

    # A newcomer.

    def packed(self) -> dict[str, Any]:
        """In JSON's types, for a worker that enters."""
        return {
            "plans": self.switch.packed(),
            "entries": self.entries.packed(),
            "departures": self.departures.packed(),
        }

    def take_over(self, packed: Mapping[str, Any]) -> None:
        """Go on from what `packed` returned on another worker."""
        self.switch.take_over(packed["plans"])
        self.entries.take_over(packed["entries"])
        self.departures.take_over(packed["departures"])
