"""A worker of a ring, for the model of membership: no servers, and each keeps the sums of its last completed round.

A ring completes a key on a worker when the parts of all have come there, on some workers earlier than on others. This
is what counts here; on which way they come does not. Where a worker ends, what is on its way from it in its last ring
is lost, as is what it would pass on there.

The thread that trains learns a moment later, with its next push, who has left with the round that is complete, and who
enters with the next one. Who enters gets the state then, and all make a ring with it before this round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynamix_ps.membership.data_messages import Part
from dynamix_ps.membership.messages import COORDINATOR, Freeze, Process, Processes, Ready, Resume, Suspect
from dynamix_ps.membership.round_in_flight import ProtocolError
from dynamix_ps.membership.schedule import Schedule
from dynamix_ps.membership.worker import Worker
from dynamix_ps.membership.worker_rounds import Outgoing, WorkerRounds
from tests.models.membership.ring_messages import Finished, Handed, Kept, Named, Piece, Ring, Sums


class RingWorker(Worker):
    """Makes sums together with the other workers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `Worker`. Who leaves makes no step with its last sum."""
        super().__init__(*args, **kwargs)
        step = self._step
        self._step = lambda state, schedule, parts: state if self.last else step(state, schedule, parts)
        self._ring: Ring | None = None
        self._named_round: int | None = None  # in the last change
        self._named: dict[Ring, dict[Process, int]] = {}
        self._pieces: dict[tuple[Ring, int, int], dict[Process, Part]] = {}  # by ring, round and key
        self._given: dict[Ring, Sums] = {}
        self._finished: dict[Ring, set[Process]] = {}
        self._kept: Sums = {}
        self._planned: Processes = frozenset()  # founders, and those that were taken in, gone ones too
        self._refused: Processes = frozenset()  # newcomers that had named no round at a decision
        self._gone: Processes = frozenset()  # whose last round is complete
        self._left: Processes = frozenset()  # of whom the training thread has learned it
        self._comers: Processes = frozenset()  # who enters with the present round, and is not taken in
        self._handed: Handed | None = None
        self._first_round = -1  # of a newcomer
        self._departs = False

    # The training thread.

    @property
    def may_push(self) -> bool:
        return super().may_push and not self._departs

    def push(self) -> Outgoing:
        if self._gone:
            return self._learn()
        if self._comers:
            return self._take_in()
        super().push()
        ring = self._ring
        return [*self._piece(ring, self.current.pushed - 1), *self._go_on()] if ring and self._sums_in(ring) else []

    def _learn(self) -> Outgoing:
        """Some have left with the round before. The others go on without them."""
        self._left, self._gone = self._left | self._gone, frozenset()
        if self.process in self._left:
            return self._depart()
        return self._with_those_present()

    def _take_in(self) -> Outgoing:
        """Some enter with the present round. The one that leads gives them the state."""
        comers, self._comers = self._comers, frozenset()
        self._planned |= comers
        leads = self._donor(self._known()) == self.process
        handed: Any = Handed(self._snapshot(self.generation), self._present())
        given = [(one, handed) for one in sorted(comers & self._present())] if leads else []
        return [*given, *self._with_those_present()]

    def _present(self) -> Processes:
        """Who makes the present round."""
        return self._planned - self._left - self._decided.gone - self._refused

    def _with_those_present(self) -> Outgoing:
        """The ring of those that stay and come, from the present round on. While one is made, it comes after it."""
        ring = self._ring
        if ring is None or not self._has_met(ring) or ring.members == self._present():
            return []
        return [*self._to_ring(ring, Finished(ring)), *self._meet(self.round, self._present())]

    def _depart(self) -> Outgoing:
        """Stay until all others have this worker's last round."""
        self._departs = True
        if self.process in self._left and self._named_round == self.round:
            return self._give_way()  # it has named the round after its last one, so others may count on it
        if self._ring is None:
            raise ProtocolError(f"{self.process} leaves in a change")
        return [*self._to_ring(self._ring, Finished(self._ring)), *self._go()]

    def _give_way(self) -> Outgoing:
        """The next ring is with it, and it does not come: it counts as lost."""
        self.over = "lost"
        return [(COORDINATOR, Suspect(self.process))]

    def _go(self) -> Outgoing:
        """Leave, if nobody needs this worker."""
        ring = self._ring
        if ring is None or not self._departs or ring.members - {self.process} - self._finished.get(ring, set()):
            return []
        return super()._leave()

    def _leave(self) -> Outgoing:
        """The training is over, for all."""
        return self._depart()

    # Rings.

    def waiting(self) -> Processes:
        ring = self._ring
        if ring is None or self.over:
            return frozenset()
        if not self._has_met(ring):
            missing = ring.members - self._named.get(ring, {}).keys()
        elif self._departs:
            missing = ring.members - self._finished.get(ring, set())
        elif self.round < ring.first_round:
            missing = frozenset({self._sender(ring)})
        else:
            missing = frozenset(
                other for key in range(self.current.pushed) for other in ring.members - self._of(ring, key).keys()
            )
        return frozenset(missing - {self.process})

    def takes_along(self, message: Any) -> bool:
        """Whether this, on its way from here, is lost with the end of this worker."""
        return isinstance(message, Named | Piece | Kept) and message.ring == self._ring

    def _follow(self, sender: Process, message: Any) -> Outgoing:
        if self._passes(message):
            return super()._leave()
        replies: Outgoing = []
        match message:
            case Named(ring, number):
                self._named.setdefault(ring, {})[sender] = number
                replies = self._begin(ring) if ring == self._ring and self._has_met(ring) else []
            case Piece(ring, number, key, part):
                self._pieces.setdefault((ring, number, key), {})[sender] = part
                replies = self._go_on()
            case Kept(ring, sums):
                self._given[ring] = sums
                replies = self._go_on()
            case Finished(ring):
                self._finished.setdefault(ring, set()).add(sender)
                replies = self._go()
            case Handed():
                self._handed = message
                replies = self._take_handed()
            case _:
                replies = super()._follow(sender, message)
        return replies

    def _passes(self, message: Any) -> bool:
        """The others are in a change in which who has left has no part. A decision that is repeated tells of none."""
        is_of_change = isinstance(message, Freeze | Resume) and message.generation > self.generation
        return self._departs and self.process in self._left and is_of_change

    @property
    def to_name(self) -> int | None:
        """A newcomer has no sum of the round before its first one, and others may lack it."""
        return super().to_name if self.round > self._first_round else None

    def _freeze(self, generation: int) -> Outgoing:
        named = super()._freeze(generation)
        if named:
            self._named_round, self._ring = self.to_name, None
        return named

    def _go_on(self) -> Outgoing:
        ring = self._ring
        if self.schedule is None or self._held() or ring is None or not self._has_met(ring):
            return []
        if self.round < ring.first_round:
            self.current.answers = dict(self._given.get(ring, {}))
        else:
            for key in range(self.current.pushed):
                if self._of(ring, key).keys() == ring.members:
                    self.current.answers[key] = dict(self._of(ring, key))
        return self._complete(self.schedule) if self.current.complete else []

    def _of(self, ring: Ring, key: int) -> dict[Process, Part]:
        """What has come of a key of the present round."""
        return self._pieces.get((ring, self.round, key), {})

    def _enter(self, number: int, schedule: Schedule) -> Outgoing:
        self._kept = dict(self.current.answers)
        self._gone = self.schedule.last[0] if self.schedule else frozenset()
        return super()._enter(number, schedule)

    # Who enters.

    def _version(self) -> int:
        """Nobody follows: all vote at once, and wait for the copy of the state."""
        return WorkerRounds._version(self)

    def _let_in(self, newcomers: Processes) -> Outgoing:
        self._comers = newcomers
        return []

    def _take_handed(self) -> Outgoing:
        """In the generation of the one that gives it. In another one the others are without this newcomer."""
        if self._handed is None or self.schedule:
            return []
        snapshot = self._handed.snapshot
        if max(self.generation, self._asked) < snapshot.generation:
            return []  # it has not heard of it yet
        if self.frozen or self.generation != snapshot.generation:
            self.over = "too late"
            return []
        self.state, self._planned, self._first_round = snapshot.state, self._handed.members, snapshot.round
        self._enter(snapshot.round, snapshot.schedule)
        self._comers = frozenset()
        return [(COORDINATOR, Ready()), *self._meet(snapshot.round, self._planned)]

    # Decisions.

    def _resume(self, resume: Resume) -> Outgoing:
        if resume.generation > self.generation and resume.generation >= self._asked:
            self._refused |= resume.without_state
            if self.process in self._refused:
                self.over = "refused"
                return []
        return super()._resume(resume)

    def _start(self, resume: Resume) -> Outgoing:
        if self.process not in resume.founders:
            self._newcomer = True
            return self._take_handed()
        self._planned = resume.founders
        super()._start(resume)
        return self._meet(resume.first_round, self._members(resume))

    def _make_anew(self, schedule: Schedule, resume: Resume) -> Outgoing:
        self.current.anew(self.generation, self.current.places)
        return self._meet(resume.first_round, self._members(resume))

    def _finish(self, resume: Resume) -> Outgoing:
        if self.last and self.round < resume.first_round - 1:
            return self._give_way()  # all others know that it leaves, and keep no sum that it lacks
        if self.round != resume.first_round - 1:
            raise ProtocolError(f"{self.process} is in round {self.round}, and {resume.first_round} is made anew")
        self.current.anew(self.generation, self.current.places)
        return self._meet(resume.first_round, self._members(resume))

    def _members(self, resume: Resume) -> Processes:
        """Of the ring of a decision: those who have left are in it, too, as far as the coordinator counts on them."""
        return self._planned - resume.gone - self._refused

    def _meet(self, first_round: int, members: Processes) -> Outgoing:
        ring = self._ring = Ring(self.generation, first_round, members)
        self._named.setdefault(ring, {})[self.process] = self.round
        return [*self._to_ring(ring, Named(ring, self.round)), *(self._begin(ring) if self._has_met(ring) else [])]

    def _has_met(self, ring: Ring) -> bool:
        return self._named.get(ring, {}).keys() == ring.members

    def _sums_in(self, ring: Ring) -> bool:
        return self._has_met(ring) and self.round >= ring.first_round

    def _begin(self, ring: Ring) -> Outgoing:
        """All have met. Who is at T begins, after it has given others the sums that they lack."""
        if self.round < ring.first_round:
            return self._go_on()
        behind = [process for process, number in self._named[ring].items() if number < ring.first_round]
        kept: Any = Kept(ring, self._kept)
        given = [(other, kept) for other in behind] if self._sender(ring) == self.process else []
        if ring.members != self._present():
            return [*given, *self._with_those_present()]
        pieces = [message for key in range(self.current.pushed) for message in self._piece(ring, key)]
        departing = self._to_ring(ring, Finished(ring)) if self._departs else []
        return [*given, *pieces, *departing, *self._go_on()]

    def _sender(self, ring: Ring) -> Process:
        """The lowest one that has completed the round before."""
        return min(process for process, number in self._named[ring].items() if number >= ring.first_round)

    def _piece(self, ring: Ring, key: int) -> Outgoing:
        assert self.current.part is not None, "it is pushed"
        self._pieces.setdefault((ring, self.round, key), {})[self.process] = self.current.part
        return self._to_ring(ring, Piece(ring, self.round, key, self.current.part))

    def _places(self, schedule: Schedule) -> Mapping[int, Process]:
        return self._place(frozenset({self.process}))

    def _to_ring(self, ring: Ring, message: Any) -> Outgoing:
        return [(other, message) for other in sorted(ring.members - {self.process})]
