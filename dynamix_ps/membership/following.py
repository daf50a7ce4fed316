"""A newcomer follows a worker until it has caught up, while nobody waits for it. Pure.

Whom it follows holds its vote back so long. What it has of one generation is worth nothing in the next: whom it follows
may be lost, and may have completed a round that the others make anew. Then it begins again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from dynamix_ps.membership.data_messages import Caught, Copy, Entered, Following, Told
from dynamix_ps.membership.messages import Process, Processes
from dynamix_ps.membership.schedule import Schedule
from dynamix_ps.membership.worker_rounds import Outgoing, Step

_AT_MOST_BEHIND = 1  # rounds


class Followers:
    """The newcomers that a worker knows of.

    Attributes:
        here: those that follow this worker, and whether they have caught up.
        elsewhere: those that follow another one.
    """

    def __init__(self) -> None:
        self.here: dict[Process, bool] = {}
        self.elsewhere: Processes = frozenset()

    def is_ready(self, newcomer: Process, leads: bool) -> bool:
        """Whether nothing holds the vote for it back. `leads`: it is to follow this worker."""
        return newcomer in self.elsewhere or self.here.get(newcomer, not leads)

    def caught(self, newcomer: Process, behind: int) -> None:
        """It has all rounds but the last ones."""
        if newcomer in self.here and behind <= 1 + _AT_MOST_BEHIND:
            self.here[newcomer] = True

    def enter(self, newcomers: Processes, generation: int, number: int) -> Outgoing:
        """Those that follow this worker enter with this round, and get what they lack."""
        entering = sorted(newcomers & self.here.keys())
        for one in entering:
            del self.here[one]
        told = Entered(generation, number, frozenset(self.here) | self.elsewhere)
        return [(one, told) for one in entering]


@dataclass(frozen=True, slots=True)
class Followed:
    """Where a newcomer is."""

    worker: Process  # that it follows
    round: int
    schedule: Schedule
    state: Any


class Follower:
    """What a newcomer has of the worker that it follows.

    Attributes:
        followed: where it is; None: it has no copy of this generation.
        early: what came of a decision that it has not heard of yet, with the senders.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self.followed: Followed | None = None
        self.early: list[tuple[Process, Following]] = []

    def begin_again(self) -> None:
        """Another generation."""
        self.followed = None

    def take(self, sender: Process, message: Copy | Told) -> Outgoing:
        """Of its generation."""
        if isinstance(message, Copy):
            self.followed = Followed(sender, message.round, message.schedule, message.state)
            return [(sender, Caught(message.round - 1))]
        if (at := self.at(sender, message.round)) is None:
            return []
        trailers = {process: part.trailer for process, part in message.parts.items()}
        schedule = at.schedule.after(trailers, message.entries)  # its own may have come later than the votes
        state = self._step(at.state, schedule, message.parts)
        self.followed = dataclasses.replace(at, round=message.round + 1, schedule=schedule, state=state)
        return [(sender, Caught(message.round))]

    def at(self, sender: Process, number: int) -> Followed | None:
        """Where it is, if it follows the sender and is in this round."""
        found = self.followed
        return found if found is not None and (found.worker, found.round) == (sender, number) else None
