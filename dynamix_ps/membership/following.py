"""A newcomer follows a worker until it has caught up, while nobody waits for it. Pure.

Whom it follows holds its vote back so long. What it has of one generation is worth nothing in the next: whom it follows
may be lost, and may have completed a round that the others make anew. Then it begins again.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynamix_ps.membership.data_messages import Caught, Copy, Entered, Following, Part, Told
from dynamix_ps.membership.messages import COORDINATOR, Process, Processes, Ready
from dynamix_ps.membership.schedule import Schedule
from dynamix_ps.membership.worker_rounds import Outgoing, WorkerRounds

_AT_MOST_BEHIND = 1  # rounds


@dataclass(frozen=True, slots=True)
class _Followed:
    """Where a newcomer is."""

    worker: Process  # that it follows
    round: int
    schedule: Schedule
    state: Any


class FollowingWorker(WorkerRounds):
    """Both sides. Calls return the messages that follow from them, in the order to be sent."""

    _followed: _Followed | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `WorkerRounds`."""
        super().__init__(*args, **kwargs)
        self._givers: dict[Process, bool] = {}  # newcomers that follow this worker, and whether they have caught up
        self._elsewhere: Processes = frozenset()  # those that follow another one
        self._told_early: list[tuple[Process, Following]] = []  # of a decision that it has not heard of yet

    # Whom it follows.

    def _version(self) -> int:
        ready = itertools.takewhile(lambda item: self._is_ready(item[1]), sorted(self._entries.items()))
        return max((version for version, _ in ready), default=super()._version())

    def _is_ready(self, process: Process) -> bool:
        if process.role != "worker" or process in self._decided.gone or process in self._elsewhere:
            return True
        return self._givers.get(process, not self._leads)

    @property
    def _leads(self) -> bool:
        return self.schedule is not None and bool(self.schedule.previous) and self._donor(self.schedule) == self.process

    def _caught(self, newcomer: Process, number: int) -> None:
        if newcomer in self._givers and self.round - number <= 1 + _AT_MOST_BEHIND:
            self._givers[newcomer] = True

    def _tell(self, parts: Mapping[Process, Part]) -> Outgoing:
        told = Told(self.generation, self.round, parts, dict(self._entries))
        return [(newcomer, told) for newcomer in sorted(self._givers)]

    def _let_in(self, newcomers: Processes) -> Outgoing:
        """Those that enter with the present round get what they lack; those that are offered begin to follow."""
        following = sorted(newcomers & self._givers.keys())
        for one in following:
            del self._givers[one]
        told = Entered(self.generation, self.round, frozenset(self._givers) | self._elsewhere)
        messages: Outgoing = [(one, told) for one in following]
        if self._leads:
            messages += super()._let_in(newcomers.difference(following) - self._elsewhere)
            known = self._givers.keys() | self._elsewhere | self._decided.gone
            new = sorted(one for one in self._entries.values() if one.role == "worker" and one not in known)
            self._givers |= dict.fromkeys(new, False)
            messages += [(one, Copy(self.generation, self.round, self._known(), self.state)) for one in new]
        self._elsewhere -= newcomers
        return messages

    def _begin_again(self) -> None:
        """Another generation."""
        self._givers, self._elsewhere = {}, frozenset()
        self._followed = None

    # The newcomer.

    def _take_told(self, sender: Process, message: Following) -> Outgoing:
        if message.generation > self.generation:
            self._told_early.append((sender, message))
        if message.generation != self.generation or self.schedule or self.frozen:
            return []
        match message:
            case Copy(_, number, schedule, state):
                self._followed = _Followed(sender, number, schedule, state)
                return [(sender, Caught(number - 1))]
            case Told() if self._is_followed(sender, message.round):
                return self._catch_up(sender, message)
            case Entered() if self._is_followed(sender, message.round):
                return self._go_in(message)
        return []

    def _is_followed(self, sender: Process, number: int) -> bool:
        return self._followed is not None and (self._followed.worker, self._followed.round) == (sender, number)

    def _catch_up(self, sender: Process, told: Told) -> Outgoing:
        assert self._followed is not None
        trailers = {process: part.trailer for process, part in told.parts.items()}
        schedule = self._followed.schedule.after(trailers, self._entries_of(told))
        state = self._step(self._followed.state, schedule, told.parts)
        self._followed = dataclasses.replace(self._followed, round=told.round + 1, schedule=schedule, state=state)
        return [(sender, Caught(told.round))]

    def _entries_of(self, told: Told) -> Mapping[int, Process]:
        """Its own may have come later than the votes."""
        return told.entries

    def _go_in(self, entered: Entered) -> Outgoing:
        assert self._followed is not None
        self.state, self._elsewhere = self._followed.state, entered.followed
        return [(COORDINATOR, Ready()), *self._enter(entered.round, self._followed.schedule)]

    def _take_early(self) -> Outgoing:
        """What came of a generation that it has heard of now."""
        early, self._told_early = self._told_early, []
        return [reply for sender, message in early for reply in self._take_told(sender, message)]
