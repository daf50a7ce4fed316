"""What happens to the workers of the soak: which kinds of events there are, when one can be, and what its effect is."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.studies.soak_training import Sum
from dynamix_ps.run_record.json_lines import JsonLinesTail
from dynamix_ps.run_record.requests import JOIN, LEAVE, request
from dynamix_ps.run_record.run_folder import RunFolder

AFTER_S = 1.0  # so long after its effect an event may still hold workers up


@dataclass(slots=True)
class Event:
    """One event.

    Attributes:
        number: from 0 on.
        kind: one of KINDS.
        rank: of the worker to which it happens.
        pid: of its process; 0: it has none.
        at_s: when, on the monotonic clock.
        workers: that were there before.
        iteration: the newest sum before it; afterwards that in which it shows.
        effect_s: from the event until the first worker has completed this sum; None: it has none yet.
        pause_s: the longest time without a step of a worker that was there before and after.
    """

    number: int
    kind: str
    rank: int
    pid: int
    at_s: float
    workers: int
    iteration: int
    effect_s: float | None = None
    pause_s: float = 0.0


@dataclass(slots=True)
class Members:
    """Who takes part, as the sums tell.

    Attributes:
        told: what workers have written of every sum, with its time, by rank.
        present: who was in the newest sum.
        awaited: events that have had no effect yet, by rank.
    """

    folder: Path
    told: dict[int, list[tuple[Sum, float]]] = field(default_factory=dict)
    present: frozenset[int] = frozenset()
    awaited: dict[int, Event] = field(default_factory=dict)
    _newest: int = -1
    _tails: dict[Path, JsonLinesTail] = field(default_factory=dict)

    @property
    def staying(self) -> frozenset[int]:
        """Those present that are not about to go."""
        return self.present - self.awaited.keys()

    def look(self) -> None:
        """Take in what is new, and end the wait for events that have had their effect."""
        for file in sorted(self.folder.glob("sums-*.jsonl")):
            rank = int(file.name.split("-")[1])
            for line in self._tails.setdefault(file, JsonLinesTail(file)).read():
                present = tuple(line["present"])
                one = Sum(line["iteration"], present, tuple(line["numbers"]), line["factor"])
                self.told.setdefault(rank, []).append((one, line["at_s"]))
                if one.iteration > self._newest:
                    self._newest, self.present = one.iteration, frozenset(present)
                    self._take_effect(one.iteration, line["at_s"])

    def begin(self, kind: str, rank: int, pid: int, number: int) -> Event:
        """Something happens now."""
        event = Event(number, kind, rank, pid, time.monotonic(), len(self.present), self._newest)
        self.awaited[rank] = event
        return event

    def _take_effect(self, iteration: int, at_s: float) -> None:
        for event in list(self.awaited.values()):
            if iteration > event.iteration and (event.rank in self.present) == KINDS[event.kind].enters:
                event.iteration, event.effect_s = iteration, at_s - event.at_s
                KINDS[event.kind].after(event)
                del self.awaited[event.rank]


def measure_pauses(events: Iterable[Event], told: Mapping[int, list[tuple[Sum, float]]]) -> None:
    """Set `pause_s` of each."""
    for event in events:
        end_s = event.at_s + (event.effect_s or 0.0) + AFTER_S
        gaps = (
            after_s - before_s
            for rank, sums in told.items()
            if rank != event.rank
            for (before, before_s), (after, after_s) in itertools.pairwise(sums)
            if before.iteration + 1 == after.iteration and after_s >= event.at_s and before_s <= end_s
        )
        event.pause_s = max(gaps, default=0.0)


@dataclass(frozen=True, slots=True)
class Kind:
    """What can happen to a worker.

    Attributes:
        what: in words.
        act: makes it happen.
        enters: its effect is that the worker is in the sums; otherwise, that it is not.
        after: when it has had its effect.
    """

    what: str
    act: Callable[[RunFolder, Event], None]
    enters: bool = False
    after: Callable[[Event], None] = lambda event: None

    def can(self, members: Members, rank: int, pid: int, fewest: int) -> bool:
        """Whether it can happen now to this worker, whose process is `pid`, while `fewest` workers are to be there."""
        if rank in members.awaited:
            return False
        if self.enters:
            return rank not in members.present and not pid
        return rank in members.present and bool(pid) and len(members.staying) > fewest


def _send(number: signal.Signals) -> Callable[[RunFolder, Event], None]:
    return lambda run, event: _signal(event, number)


def _signal(event: Event, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(event.pid, number)


def _ask(what: str) -> Callable[[RunFolder, Event], None]:
    return lambda run, event: request(run, what, event.rank)


KINDS = {
    "kill": Kind("`kill -9`", _send(signal.SIGKILL)),
    "stop": Kind(
        "stopped for longer than its lease", _send(signal.SIGSTOP), after=lambda event: _signal(event, signal.SIGCONT)
    ),
    "notice": Kind("leaves by SIGTERM", _send(signal.SIGTERM)),
    "leave": Kind("leaves by `dynamix leave`", _ask(LEAVE)),
    "join": Kind("comes back by `dynamix join`", _ask(JOIN), enters=True),
}
