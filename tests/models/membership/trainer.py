"""The thread of a worker that trains: what `worker_hooks/membership_changes.py` does around each sum, step by step.

Between two of these steps anything may happen to the worker. A newcomer that follows makes the same steps, with the
sums it is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from dynamix_ps.comm.catching_up import CatchingUp
from dynamix_ps.membership.effects import GoAway, suspicion
from dynamix_ps.membership.known_members import Planned
from dynamix_ps.membership.messages import Process, ToCoordinator
from dynamix_ps.membership.sums import SumProgress
from dynamix_ps.membership.worker import Effects, Worker
from tests.models.membership.training import Part, Parts, Training
from worker_hooks.membership.votes import MembershipVotes

_KEPT = 4  # sums that are kept for a newcomer; it enters when it is further behind
DEPART_S = 10.0  # so long does a worker that ends wait for the others


class Violation(AssertionError):
    """The protocol, or who follows it, is wrong."""


class Phase(Enum):
    """Where the thread is."""

    BEGIN = auto()  # the others have not met, or it has no state
    ADMIT = auto()  # between two rounds
    GIVE = auto()  # between two rounds, and those that enter lack something
    ENTER = auto()  # it has followed, or has got the state, and is in the coming round
    PUSH = auto()
    WAIT = auto()
    SUMMED = auto()  # the round is complete
    LEARNT = auto()  # the same, and it knows who leaves
    DEPART = auto()
    OVER = auto()


@dataclass(frozen=True, slots=True)
class Handover:
    """What a newcomer gets: the state before a round, and all else that the others know."""

    planned: Planned
    follows: bool
    round: int
    training: Training
    votes: Any
    present: tuple[int, ...]
    followed: tuple[Process, ...]
    has_sum: bool


@dataclass(frozen=True, slots=True)
class Told:
    """To a newcomer that follows: a sum, and the entries on which it may decide."""

    parts: Parts
    offered: Mapping[int, Process]


@dataclass(frozen=True, slots=True)
class Taken:
    """From a newcomer: it has taken in one more."""


class RoundPlane(Protocol):
    """The sums, beside what decisions need."""

    def push(self, number: int, part: Part) -> None: ...
    def wait(self) -> Mapping[Any, Parts] | None: ...
    def depart(self) -> None: ...
    def status(self) -> SumProgress: ...
    @property
    def departed(self) -> bool: ...


@dataclass
class Trainer:
    """One worker.

    Attributes:
        outgoing: what it sends to other workers.
        inbox: what has come of the one that gives the state.
        over: why it has stopped.
    """

    core: Worker
    plane: RoundPlane
    votes: MembershipVotes[CatchingUp]
    buffers: int
    closes: Callable[..., bool]  # the training is over before this round; the same on all workers
    reaches: Callable[[Process], bool]  # this newcomer listens, and follows nobody yet
    training: Training = field(default_factory=Training)
    phase: Phase = Phase.BEGIN
    leaving: bool = False
    ending: bool = False
    is_founder: bool = True
    over: str = ""
    outgoing: list[tuple[Process, Any]] = field(default_factory=list)
    inbox: list[tuple[Process, Any]] = field(default_factory=list)
    giver: Process | None = None
    giver_is_gone: bool = False
    part: Part | None = None
    pushed: int = 0
    entered_at: int = -1
    followed: int = 0  # rounds
    not_reached: list[Process] = field(default_factory=list)  # newcomers
    waited_s: float = 0.0  # for the others, at its end
    last_word: ToCoordinator | None = None
    _parts: Parts = frozenset()
    _present: Sequence[int] = ()
    _has_sum: bool = False
    _entering: list[Process] | None = None
    _givers: dict[Process, CatchingUp | None] = field(default_factory=dict)
    _planned: Planned | None = None
    _to_meet: Sequence[Process] = ()  # servers, before it follows
    _begin: tuple[Planned, int] | None = None

    @property
    def own(self) -> Process:
        return self.core.known.own

    @property
    def round(self) -> int:
        """The round that it has not made its step with."""
        return self.training.iteration

    @property
    def has_state(self) -> bool:
        """It is in rounds."""
        return not self.core.known.is_late and self.phase not in (Phase.BEGIN, Phase.ENTER)

    @property
    def leads(self) -> bool:
        return bool(self._present) and self.own.slot == min(self._present)

    @property
    def is_last(self) -> bool:
        """It leaves, and has no samples any more."""
        return self.own.slot not in self.votes.departures.staying([self.own.slot])

    @property
    def can_act(self) -> bool:
        """Whether the thread can go on now."""
        match self.phase:
            case Phase.BEGIN:
                return self.core.generation > 0 if self.is_founder else bool(self.inbox) or self.giver_is_gone
            case Phase.ADMIT if self.votes.follows and self._entering is None:
                return all(map(self.core.known.has_met, self._to_meet))
            case Phase.ADMIT if self.votes.follows:
                return bool(self.inbox) or self.giver_is_gone
            case Phase.ADMIT:
                return self._entering is None or all(map(self.core.known.has_met, self._entering))
            case Phase.ENTER:
                assert self._begin is not None
                planned = self._begin[0]
                met = all(map(self.core.known.has_met, planned.servers))
                return met and self.core.has_heard_of(planned.generation)
            case Phase.DEPART:
                in_vain = self.waited_s > DEPART_S
                return self.plane.departed or self.core.need_not_stay or self.core.known.is_late or in_vain
            case Phase.OVER:
                return False
        return True

    def act(self) -> Effects:
        """One step. WAIT may find that the round is not complete."""
        match self.phase:
            case Phase.BEGIN:
                self._start()
            case Phase.ADMIT if self._entering is None:
                self._entering = self.votes.entries.due(self.round)
            case Phase.ADMIT:
                return self._admit(self._entering)
            case Phase.GIVE:
                return self._give()
            case Phase.ENTER:
                return self._enter()
            case Phase.PUSH:
                self._push()
            case Phase.WAIT:
                self._wait()
            case Phase.SUMMED:
                self._learn()
            case Phase.LEARNT:
                self._step()
            case Phase.DEPART:
                self._end()
        return []

    def servers_to_meet(self) -> list[Process]:
        """Those that it waits for."""
        awaited: Sequence[Process] = self._entering or ()
        if self.phase is Phase.ENTER and self._begin:
            awaited = self._begin[0].servers
        elif self.votes.follows:
            awaited = self._to_meet
        return [one for one in awaited if not self.core.known.has_met(one)]

    @property
    def planned(self) -> Planned | None:
        """With whom this newcomer was to begin."""
        return self._begin[0] if self._begin else None

    # Its beginning.

    def _start(self) -> None:
        if self.is_founder:
            self._present = sorted(one.slot for one in self.core.known.planned.values())
            for _ in range(1 + self.votes.switch.lag):
                self.training = self.training.plan(self.votes.switch)
            self.phase = Phase.ADMIT
            return
        if not self.inbox:
            return self.stop("whom it followed is gone")
        self.giver, handover = self.inbox.pop(0)
        assert isinstance(handover, Handover)
        self.training = handover.training
        self.votes.take_over(handover.votes)
        self._present, self._has_sum = handover.present, handover.has_sum
        self.votes.follows, self.phase, self._to_meet = handover.follows, Phase.ADMIT, handover.planned.servers
        if not handover.follows:
            self.votes.newcomers.take_over(handover.followed)
            self._begin, self.phase = (handover.planned, handover.round), Phase.ENTER

    def _enter(self) -> Effects:
        assert self._begin is not None
        effects = self.core.begin(*self._begin)
        if any(isinstance(one, GoAway) for one in effects):
            self.stop("too late")
            return []
        self.entered_at, self.phase, self.votes.follows = self.round, Phase.PUSH, False
        return effects

    # Between two rounds.

    def _admit(self, entering: list[Process] | None) -> Effects:
        if any(one.role == "worker" for one in entering or ()):
            self._has_sum = False
        if self.votes.follows:
            self._follow(entering or [])
            return []
        self._entering = None
        self.phase = Phase.GIVE
        self._givers = {}
        if entering:
            self._planned, self._givers = self.votes.take_in(entering, self.leads)
        return []

    def _give(self) -> Effects:
        """Those that enter get what they lack, and others begin to follow."""
        effects: Effects = []
        for newcomer, giver in self._givers.items():
            assert self._planned is not None
            there = self.votes.is_there(newcomer, giver, self._planned)
            if there and (giver is not None or self.reaches(newcomer)):
                self.outgoing.append((newcomer, self._handover(self._planned, follows=False)))
            elif there or giver is not None:
                effects += self.cannot_reach(newcomer)
        self._givers = {}
        for newcomer in self.votes.unfollowing(self.leads) if self._has_sum else ():
            self.votes.newcomers.here[newcomer] = CatchingUp(_KEPT)
            self.outgoing.append((newcomer, self._handover(self.core.planned(), follows=True)))
        self.phase = Phase.PUSH
        return effects

    def cannot_reach(self, newcomer: Process) -> Effects:
        """The others wait for it, and are told."""
        self.not_reached.append(newcomer)
        return [suspicion(newcomer)]

    def _handover(self, planned: Planned, follows: bool) -> Handover:
        followed, number = tuple(self.votes.newcomers.followed), self.plane.status().first_incomplete
        votes, present = self._packed(), tuple(self._present)
        return Handover(planned, follows, number, self.training, votes, present, followed, self._has_sum)

    def _packed(self) -> Any:
        """The votes as they travel."""
        return json.loads(json.dumps(self.votes.packed()))

    def _follow(self, entering: Sequence[Process]) -> None:
        """This newcomer takes in the next sum, or enters."""
        if not self.inbox:
            return self.stop("whom it followed is gone")
        self._entering = None
        _, told = self.inbox.pop(0)
        if self.own in entering:
            if not isinstance(told, Handover) or told.follows:
                raise Violation(f"{self.own} is to enter with round {self.round}, and is told {told}")
            if (told.training, told.votes) != (self.training, self._packed()):
                raise Violation(f"{self.own} has followed to {self.training}, and the others have {told.training}")
            self.votes.newcomers.take_over(told.followed)
            self._begin, self.phase = (told.planned, told.round), Phase.ENTER
        elif not isinstance(told, Told):
            raise Violation(f"{self.own} follows to round {self.round}, and is told {told}")
        else:
            self.votes.told, self._parts, self.phase = told.offered, told.parts, Phase.SUMMED
            self.followed += 1

    # Rounds.

    def _push(self) -> None:
        if self.part is None:
            self.part = self._written()
        self.plane.push(self.pushed, self.part)
        self.pushed += 1
        if self.pushed == self.buffers:
            self.phase = Phase.WAIT

    def _written(self) -> Part:
        if self.closes(self.round):
            return Part(self.own, self.round, closing=True)
        samples = self.training.samples_of(self.own.slot)
        return Part(self.own, self.round, self.votes.vote(self.leads), self.leaving, self.ending, samples=samples)

    def _wait(self) -> None:
        if (sums := self.plane.wait()) is None:
            return
        self._parts = next(iter(sums.values()))
        if any(parts != self._parts for parts in sums.values()):
            raise Violation(f"{self.own}, round {self.round}: the sums of its parts are of different workers: {sums}")
        if any(part.round != self.round for part in self._parts):
            raise Violation(f"{self.own}, round {self.round}: {self._parts}")
        self.part, self.pushed, self.phase = None, 0, Phase.SUMMED

    def _learn(self) -> None:
        """Those that follow are told; who leaves is no member any more."""
        if len({part.closing for part in self._parts}) > 1:
            raise Violation(f"{self.own}, round {self.round}: some have ended: {self._parts}")
        if not self.votes.follows:
            for newcomer, giver in self.votes.newcomers.here.items():
                giver.keep(1)
                giver.note()
                self.outgoing.append((newcomer, Told(self._parts, self.votes.offered)))
        elif self.giver is not None:
            self.outgoing.append((self.giver, Taken()))
        if any(part.closing for part in self._parts):
            return self.stop("the training was over before it entered") if self.votes.follows else self._depart()
        if any(part.ending for part in self._parts):
            self.closes(self.round + 1, True)
        present = sorted(part.worker.slot for part in self._parts)
        missing, votes, number = self.training.missing(present), self.votes, self.round
        if missing:
            votes.lose(number, missing)
        left = votes.leave(number, number, present, [part.worker.slot for part in self._parts if part.leaving])
        if not left.staying:
            return self.stop("all that were to stay are lost")
        self._present = [slot for slot in present if slot not in left.gone]
        if self.own.slot in left.gone:
            return self._depart()
        self.training = self.training.step(self._parts, missing)
        self.phase = Phase.LEARNT

    def _step(self) -> None:
        """The votes on entries count, and one more iteration is prepared."""
        number = self.round - 1
        self.votes.switch.decide(number, 0)
        versions = {part.entry_version for part in self._parts}
        self.votes.enter(number, versions.pop() if len(versions) == 1 else None)
        self.training = self.training.plan(self.votes.switch)
        self._has_sum, self.phase = True, Phase.ADMIT

    # Its end.

    def _depart(self) -> None:
        self.phase = Phase.DEPART
        self.core.depart()
        if not self.core.known.is_late:
            self.plane.depart()

    def _end(self) -> None:
        departed = self.plane.departed
        self.last_word = self.core.last_word(departed)
        self.stop("left")

    def stop(self, reason: str) -> None:
        """The process ends."""
        self.phase, self.over = Phase.OVER, reason
