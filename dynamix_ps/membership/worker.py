"""A worker's side of membership: it names its round, makes it anew, takes the state from another. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from dynamix_ps.membership.data_messages import (
    Answer,
    AskState,
    Caught,
    Copy,
    DataMessage,
    Entered,
    Following,
    Part,
    Snapshot,
    Told,
)
from dynamix_ps.membership.following import Follower, Followers
from dynamix_ps.membership.messages import (
    COORDINATOR,
    Ended,
    Enter,
    Freeze,
    FromCoordinator,
    Join,
    Process,
    Processes,
    Ready,
    Refused,
    Resume,
    Status,
    Suspect,
)
from dynamix_ps.membership.round_in_flight import ProtocolError
from dynamix_ps.membership.schedule import Schedule
from dynamix_ps.membership.worker_rounds import Outgoing, WorkerRounds


class Worker(WorkerRounds):
    """Not thread safe. Calls return the messages that follow from them, in the order to be sent."""

    _newcomer = False
    _early: Snapshot | None = None  # of a decision that it has not heard of yet

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `WorkerRounds`."""
        super().__init__(*args, **kwargs)
        self._followers, self._follower = Followers(), Follower(self._step)
        self._closed: set[Process] = set()

    @property
    def to_name(self) -> int | None:
        """The round that it names in a change; none before it has what others need."""
        return self.round if self.schedule else None

    def waiting(self) -> Processes:
        """Whose answer or state is missing, as far as a worker knows. Whose push is missing, servers know."""
        waiting = set(self.current.unanswered())
        if self._cut_off() and self._decided.donor:
            waiting.add(self._decided.donor)
        if self.schedule and self._newcomers(self.schedule):
            waiting.add(self._donor(self.schedule))
        return frozenset(waiting - self._decided.gone - {self.process})

    # Messages.

    def join(self) -> Outgoing:
        """To be sent on every new connection to the coordinator."""
        ready: Outgoing = [(COORDINATOR, Ready())] if self._newcomer and self.schedule else []
        closed = sorted(self._closed - self._decided.gone)
        return [(COORDINATOR, Join()), *ready, *((COORDINATOR, Suspect(process)) for process in closed)]

    def on_closed(self, server: Process) -> Outgoing:
        """The connection to a server closed."""
        self._closed.add(server)
        return [(COORDINATOR, Suspect(server))] if server not in self._decided.gone and not self.over else []

    def on_message(self, sender: Process, message: FromCoordinator | DataMessage) -> Outgoing:
        """Raises ProtocolError if the message cannot be."""
        return [] if self.over else self._follow(sender, message)

    def _follow(self, sender: Process, message: FromCoordinator | DataMessage) -> Outgoing:
        replies: Outgoing = []
        match message:
            case Answer():
                if message.round == self.round and self._counts(message):
                    self.current.take(message)
                replies = self._go_on()
            case Freeze(generation):
                replies = self._freeze(generation)
            case Resume():
                replies = self._resume(message)
            case Enter(entry):
                self._entries[entry.version] = entry.process
            case AskState(generation, asked):
                replies = [(sender, self._snapshot(generation))] if asked == self.round else []
            case Snapshot():
                replies = self._take(message)
            case Copy() | Told() | Entered():
                replies = self._take_told(sender, message)
            case Caught(number):
                self._followers.caught(sender, self.round - number)
            case Refused(_, reason) | Ended(reason):
                self.over = reason
        return replies

    def _counts(self, answer: Answer) -> bool:
        """Only sums of the pushes that it has sent last: of the newest generation that made its own round anew."""
        return answer.generation == self.current.generation

    def _freeze(self, generation: int) -> Outgoing:
        if generation <= self.generation:
            return []  # sent again
        self._asked = max(generation, self._asked)
        return [(COORDINATOR, Status(generation, self.to_name))]

    # Decisions.

    def _resume(self, resume: Resume) -> Outgoing:
        self._entries.update({entry.version: entry.process for entry in resume.entries})
        if resume.generation <= self.generation or resume.generation < self._asked:
            return []  # sent again, or another change has begun
        self.generation, self._decided = resume.generation, resume
        self._followers = Followers()
        self._follower.begin_again()
        if self.schedule is None:
            return self._start(resume)
        if self.round == resume.first_round:
            return self._make_anew(self.schedule, resume)
        return self._finish(resume)

    def _finish(self, resume: Resume) -> Outgoing:
        """It is behind: complete the present round, which somebody has completed."""
        if self.last:
            return self._leave()
        if self.round != resume.first_round - 1:
            raise ProtocolError(f"{self.process} is in round {self.round}, and {resume.first_round} is made anew")
        if not self._cut_off():
            return self._go_on()
        if resume.donor is None:
            raise ProtocolError(f"{self.process} needs the state before round {resume.first_round}, and nobody has it")
        return [(resume.donor, AskState(resume.generation, resume.first_round))]

    def _make_anew(self, schedule: Schedule, resume: Resume) -> Outgoing:
        self.current.anew(self.generation, self._places(schedule))
        part, expected = self.current.part, self._expected()
        again = [self.current.push(key, part, len(expected)) for key in range(self.current.pushed) if part]
        newcomers = resume.without_state & expected if resume.donor == self.process else frozenset()
        return [*again, *self._give(newcomers), *self._go_on()]

    def _cut_off(self) -> bool:
        """It is behind, and an answer was at a server that is gone."""
        return self.round < self._decided.first_round and bool(self.current.unanswered() & self._decided.gone)

    # The state of the training.

    def _start(self, resume: Resume) -> Outgoing:
        """A founder begins with the first decision. A newcomer waits for the state."""
        if self.process in resume.founders:
            return self._enter(0, Schedule.of_founders(resume.founders, self._prefetch))
        self._newcomer = True
        early, self._follower.early = self._follower.early, []
        told = [reply for sender, message in early for reply in self._take_told(sender, message)]
        return [*(self._take(self._early) if self._early else []), *told]

    def _take(self, snapshot: Snapshot) -> Outgoing:
        """Only in the generation that it is sent in: an older one may be of a round that is made anew."""
        if snapshot.generation > self.generation:
            self._early = snapshot
            return []
        wanted = self.schedule is None or (self._cut_off() and snapshot.round == self.round + 1)
        if snapshot.generation < self.generation or self.frozen or not wanted:
            return []
        ready: Outgoing = [] if self.schedule else [(COORDINATOR, Ready())]
        self.state, self._early = snapshot.state, None
        return [*ready, *self._enter(snapshot.round, snapshot.schedule)]

    # Newcomers that follow.

    def _version(self) -> int:
        ready = itertools.takewhile(lambda item: self._is_ready(item[1]), sorted(self._entries.items()))
        return max((version for version, _ in ready), default=self._known().version)

    def _is_ready(self, process: Process) -> bool:
        is_new = process.role == "worker" and process not in self._decided.gone
        return not is_new or self._followers.is_ready(process, self._leads)

    @property
    def _leads(self) -> bool:
        return self.schedule is not None and bool(self.schedule.previous) and self._donor(self.schedule) == self.process

    def _tell(self, parts: Mapping[Process, Part]) -> Outgoing:
        told = Told(self.generation, self.round, parts, dict(self._entries))
        return [(newcomer, told) for newcomer in sorted(self._followers.here)]

    def _let_in(self, newcomers: Processes) -> Outgoing:
        """Those that enter with the present round get what they lack; those that are offered begin to follow."""
        messages = self._followers.enter(newcomers, self.generation, self.round)
        if self._leads:
            told, elsewhere = {one for one, _ in messages}, self._followers.elsewhere
            messages += super()._let_in(newcomers.difference(told) - elsewhere)
            known = self._followers.here.keys() | elsewhere | self._decided.gone
            new = sorted(one for one in self._entries.values() if one.role == "worker" and one not in known)
            self._followers.here |= dict.fromkeys(new, False)
            messages += [(one, Copy(self.generation, self.round, self._known(), self.state)) for one in new]
        self._followers.elsewhere -= newcomers
        return messages

    def _take_told(self, sender: Process, message: Following) -> Outgoing:
        """This newcomer follows the sender, and enters when the sender says so."""
        if message.generation > self.generation:
            self._follower.early.append((sender, message))
        if message.generation != self.generation or self.schedule or self.frozen:
            return []
        if not isinstance(message, Entered):
            return self._follower.take(sender, message)
        if (at := self._follower.at(sender, message.round)) is None:
            return []
        self.state, self._followers.elsewhere = at.state, message.followed
        return [(COORDINATOR, Ready()), *self._enter(at.round, at.schedule)]
