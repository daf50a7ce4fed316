"""A worker's rounds: what it pushes, when a round is complete, when it is gone. Pure.

It also is the reference for a worker's data plane: keys are pushed one by one, answers come in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from dynamix_ps.membership.data_messages import DataMessage, Part, Snapshot
from dynamix_ps.membership.messages import COORDINATOR, NOTHING_DECIDED, Leave, Process, Processes, ToCoordinator
from dynamix_ps.membership.round_in_flight import ProtocolError, RoundInFlight
from dynamix_ps.membership.schedule import Schedule, Trailer

Outgoing: TypeAlias = list[tuple[Process, ToCoordinator | DataMessage]]
Place: TypeAlias = Callable[[Processes], Mapping[int, Process]]
Step: TypeAlias = Callable[[Any, Schedule, Mapping[Process, Part]], Any]


class WorkerRounds:
    """What a worker does by itself. Calls return the messages that follow from them, in the order to be sent."""

    def __init__(
        self,
        process: Process,
        place: Place,
        step: Step,
        gradient: Callable[[Any], Any],
        state: Any,
        prefetch: int = 0,
    ) -> None:
        """
        Args:
            process: itself.
            place: the server of each key; the same on all workers for the same servers.
            step: the state after a round, from the state before it, the schedule after it, and all parts.
            gradient: this worker's gradient, from the state before the round.
            state: a founder's initial state.
            prefetch: rounds whose data are on their way.
        """
        self.process, self.state = process, state
        self.generation = 0
        self.schedule: Schedule | None = None  # None until it has the state of the training
        self.current = RoundInFlight(0, 0, {})
        self.leaving = False  # set by who wants it to go
        self.closing = False  # set before the first push of a round without a gradient: the training is over
        self.over = ""  # why it has stopped
        self._place, self._step, self._gradient, self._prefetch = place, step, gradient, prefetch
        self._asked = 0  # newest generation for which it has named its round
        self._decided = NOTHING_DECIDED  # the last decision
        self._entries: dict[int, Process] = {}  # by version, those that are not voted in yet

    @property
    def round(self) -> int:
        """The first round that it has not completed."""
        return self.current.number

    @property
    def frozen(self) -> bool:
        """It has named its round, and waits for the decision."""
        return self._asked > self.generation

    @property
    def last(self) -> bool:
        """It leaves: the present round is its last, and it puts nothing into the sum."""
        return self.schedule is not None and self.process in self.schedule.last[0]

    def _expected(self) -> Processes:
        return self.schedule.expected(self._decided.gone) if self.schedule else frozenset()

    # The training thread.

    @property
    def may_push(self) -> bool:
        """A key of the present round is not pushed yet."""
        return self.schedule is not None and not self.over and self.current.pushed < len(self.current.places)

    def push(self) -> Outgoing:
        """Push the next key of the present round. The part is written with the first."""
        part = self.current.part or self._write()
        self.current.pushed += 1
        return [self.current.push(self.current.pushed - 1, part, len(self._expected()))]

    def _write(self) -> Part:
        trailer = Trailer(self.leaving, self._version(), self.closing)
        return Part(trailer, None if self.closing or self.last else self._gradient(self.state))

    def _version(self) -> int:
        """Of the newest entry that it votes for."""
        return max(self._entries, default=self._known().version)

    # Rounds.

    def _go_on(self) -> Outgoing:
        """Complete what can be completed."""
        if self.schedule is None or self._held():
            return []
        if self.last and self.current.pushed == len(self.current.places) and self.current.answers:
            return self._leave()  # all have pushed this round, so all have the one before
        return self._complete(self.schedule) if self.current.complete else []

    def _complete(self, schedule: Schedule) -> Outgoing:
        parts = self.current.parts()
        trailers = {process: part.trailer for process, part in parts.items()}
        if all(trailer.closing for trailer in trailers.values()):
            return self._leave()
        following = schedule.after(trailers, self._entries)
        self.state = self._step(self.state, following, parts)
        return [*self._tell(parts), *self._enter(self.round + 1, following)]

    def _tell(self, parts: Mapping[Process, Part]) -> Outgoing:
        """The present round is complete, with these parts."""
        return []

    def _held(self) -> bool:
        """Who has named its round completes none until the decision: the others may make it anew."""
        return self.frozen

    def _leave(self) -> Outgoing:
        self.over = "left"
        return [(receiver, Leave()) for receiver in (COORDINATOR, *sorted(set(self.current.places.values())))]

    def _enter(self, number: int, schedule: Schedule) -> Outgoing:
        """Begin a round. The training thread pushes its keys."""
        self.schedule = schedule
        self._entries = {version: process for version, process in self._entries.items() if version > schedule.version}
        self.current = RoundInFlight(number, self.generation, self._places(schedule))
        return self._let_in(self._newcomers(schedule))

    def _let_in(self, newcomers: Processes) -> Outgoing:
        """Those that enter with the present round get the state."""
        return self._give(newcomers) if newcomers and self._donor(self._known()) == self.process else []

    def _newcomers(self, schedule: Schedule) -> Processes:
        """Who takes part in the present round and has not in the one before; none in round 0."""
        return self._expected() - schedule.previous if schedule.previous else frozenset()

    def _donor(self, schedule: Schedule) -> Process:
        """Who gives them the state, unless it is lost: then the coordinator names another one."""
        return min(schedule.previous - self._decided.gone, default=self.process)

    def _places(self, schedule: Schedule) -> Mapping[int, Process]:
        """Where no server is left that was voted in, with those that have come since."""
        return self._place(schedule.servers[0] - self._decided.gone or self._decided.servers)

    def _give(self, receivers: Processes) -> Outgoing:
        return [(receiver, self._snapshot(self.generation)) for receiver in sorted(receivers)]

    def _snapshot(self, generation: int) -> Snapshot:
        return Snapshot(generation, self.round, self._known(), self.state)

    def _known(self) -> Schedule:
        if self.schedule is None:
            raise ProtocolError(f"{self.process} has no state of the training yet")
        return self.schedule
