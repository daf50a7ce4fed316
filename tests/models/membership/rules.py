"""The rules of membership, each switched off. The model must then find a schedule that goes wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynamix_ps.membership.coordinator import Coordinator
from dynamix_ps.membership.data_messages import Answer, Caught, Copy, Following, Told
from dynamix_ps.membership.following import Followed, Follower
from dynamix_ps.membership.generations import Output
from dynamix_ps.membership.journal import Record
from dynamix_ps.membership.messages import Process, Processes
from dynamix_ps.membership.schedule import Schedule, Trailer
from dynamix_ps.membership.worker import Worker
from dynamix_ps.membership.worker_rounds import Outgoing
from tests.models.membership.ring import RingWorker
from tests.models.membership.ring_rules import OFF, OFF_WHEN_ENTERING, OFF_WHEN_LEAVING, GoesWhenTold
from tests.models.membership.world import Job

_UNWRITTEN_S = 0.5


class WithoutFreeze(Worker):
    """Completes a round after it has named it as incomplete."""

    def _held(self) -> bool:
        return False


class WithoutGenerations(Worker):
    """Takes any answer of its round."""

    def _counts(self, answer: Answer) -> bool:
        return True


class AnyGenerationBehind(Worker):
    """One round behind, it takes answers of any generation."""

    def _counts(self, answer: Answer) -> bool:
        return super()._counts(answer) or self.round < self._decided.first_round


class WithoutTakingState(Worker):
    """Waits for an answer that was lost with its server."""

    def _cut_off(self) -> bool:
        return False


class WithoutStaying(Worker):
    """Goes when it has completed its last round with samples, and is expected no longer."""

    def _expected(self) -> Processes:
        return super()._expected() - (self.schedule.last[0] if self.schedule else frozenset())

    def _enter(self, number: int, schedule: Schedule) -> Outgoing:
        messages = super()._enter(number, schedule)
        return [*messages, *self._leave()] if self.last else messages


class LostMayEnter(Worker):
    """Expects parts of whom the votes let in, though it is lost."""

    def _expected(self) -> Processes:
        if not self.schedule:
            return frozenset()
        return self.schedule.expected(self._decided.gone & self.schedule.previous)


class _AnyFollower(Follower):
    def begin_again(self) -> None: ...

    def take(self, sender: Process, message: Copy | Told) -> Outgoing:
        if isinstance(message, Copy) and self.followed is not None:
            return [(sender, Caught(message.round - 1))]
        return super().take(sender, message)

    def at(self, sender: Process, number: int) -> Followed | None:
        return self.followed if self.followed is not None and self.followed.round == number else None


class FollowsOn(Worker):
    """A newcomer goes on with what it has of an older generation."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `Worker`."""
        super().__init__(*args, **kwargs)
        self._follower = _AnyFollower(self._step)


class WithoutToldEntries(Worker):
    """A newcomer decides on entries that it has heard of itself."""

    def _take_told(self, sender: Process, message: Following) -> Outgoing:
        own = dataclasses.replace(message, entries=self._entries) if isinstance(message, Told) else message
        return super()._take_told(sender, own)


class AllMayLeave(Schedule):
    """A vote to leave counts also where nobody stays."""

    __slots__ = ()

    def after(self, trailers: Mapping[Process, Trailer], entries: Mapping[int, Process]) -> Schedule:
        following = super().after(trailers, entries)
        *decided, workers = following.workers
        if not workers <= {process for process, trailer in trailers.items() if trailer.leaving}:
            return following
        last = (*following.last[:-1], workers)
        return dataclasses.replace(following, workers=(*decided, frozenset()), last=last)


class HeldByOne(Schedule):
    """Votes in an entry that one worker holds."""

    __slots__ = ()

    def after(self, trailers: Mapping[Process, Trailer], entries: Mapping[int, Process]) -> Schedule:
        newest = max(trailer.version for trailer in trailers.values())
        voted = {process: dataclasses.replace(trailer, version=newest) for process, trailer in trailers.items()}
        return super().after(voted, entries)


class AllLeave(Worker):
    """Counts votes as `AllMayLeave`."""

    def _enter(self, number: int, schedule: Schedule) -> Outgoing:
        return super()._enter(number, _as(AllMayLeave, schedule))


class EntersHeldByOne(Worker):
    """Counts votes as `HeldByOne`."""

    def _enter(self, number: int, schedule: Schedule) -> Outgoing:
        return super()._enter(number, _as(HeldByOne, schedule))


def _as(kind: type[Schedule], schedule: Schedule) -> Schedule:
    return kind(*(getattr(schedule, field.name) for field in dataclasses.fields(Schedule)))


class SmallestRound(Coordinator):
    """Makes the smallest of the named rounds anew."""

    def _round_to_make_anew(self, rounds: Mapping[Process, int]) -> int:
        return min(rounds.values())


class JournalsLater(Coordinator):
    """Tells others before it has written down why: what it has not is lost when it dies."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As `Coordinator`."""
        super().__init__(*args, **kwargs)
        self._unwritten: list[tuple[float, Record]] = []

    def _settle(self, now_s: float) -> Output:
        output = super()._settle(now_s)
        unwritten = [*self._unwritten, *((now_s, record) for record in output.records)]
        output.records = [record for since_s, record in unwritten if now_s - since_s >= _UNWRITTEN_S]
        self._unwritten = [one for one in unwritten if now_s - one[0] < _UNWRITTEN_S]
        return output


@dataclass(frozen=True, slots=True)
class Rule:
    """What is switched off, and faults under which it shows."""

    name: str
    off: Mapping[str, Any]  # fields of Job
    faults: Mapping[str, int]
    job: Job
    chance: float = 0.015  # of a fault before each action

    def broken(self) -> Job:
        """The job without the rule."""
        return dataclasses.replace(self.job, **self.off)


_RING = Job(4, 0, worker_class=RingWorker)
_RING_LEFT = Job(4, 0, rounds=8, worker_class=RingWorker)
_RING_JOINED = Job(4, 0, rounds=10, worker_class=RingWorker)
RULES = (
    Rule("freeze", {"worker_class": WithoutFreeze}, {"kill worker": 1}, Job(3, 2)),
    Rule("generations", {"worker_class": WithoutGenerations}, {"kill worker": 1}, Job(3, 2)),
    Rule(
        "newest generation",
        {"worker_class": AnyGenerationBehind},
        {"kill worker": 3, "slow answers": 3},
        Job(4, 2),
        0.03,
    ),
    Rule("largest round", {"coordinator_class": SmallestRound}, {"kill worker": 1}, Job(3, 2)),
    Rule("taking state", {"worker_class": WithoutTakingState}, {"kill server": 1}, Job(3, 2)),
    Rule(
        "staying",
        {"worker_class": WithoutStaying},
        {"leave": 2, "kill worker": 1, "kill server": 1, "slow answers": 2},
        Job(4, 2),
    ),
    Rule("never again", {"worker_class": LostMayEnter}, {"join": 1, "kill worker": 1}, Job(3, 2)),
    Rule("beginning again", {"worker_class": FollowsOn}, {"join": 1, "kill worker": 1}, Job(3, 2, rounds=10), 0.03),
    Rule(
        "told entries", {"worker_class": WithoutToldEntries}, {"join": 3, "slow offers": 3}, Job(3, 2, rounds=12), 0.05
    ),
    Rule("somebody who stays", {"worker_class": AllLeave}, {"leave together": 1}, Job(3, 2)),
    Rule("entries that all hold", {"worker_class": EntersHeldByOne}, {"join server": 1}, Job(3, 2, rounds=12), 0.03),
    Rule(
        "records before messages",
        {"coordinator_class": JournalsLater},
        {"kill worker": 1, "restart": 1},
        Job(3, 2),
        0.03,
    ),
    Rule("largest round of a ring", {"coordinator_class": SmallestRound}, {"kill worker": 2}, _RING),
    *(Rule(f"{name} of a ring", {"worker_class": off}, {"kill worker": 2}, _RING) for name, off in OFF.items()),
    *(
        Rule(f"{name} of a ring", {"worker_class": off}, {"leave": 2, "kill worker": 2}, _RING, 0.05)
        for name, off in OFF_WHEN_LEAVING.items()
    ),
    Rule(
        "staying of a ring where a decision is repeated",
        {"worker_class": GoesWhenTold},
        {"leave": 3, "reconnect": 4},
        _RING_LEFT,
        0.03,
    ),
    *(
        Rule(f"{name} of a ring", {"worker_class": off}, {"join": 2, "kill worker": 2}, _RING_JOINED, 0.04)
        for name, off in OFF_WHEN_ENTERING.items()
    ),
)
