"""What happens to the roles of the soak: which kinds of events there are, when one can be, and its effect."""

from __future__ import annotations

import itertools
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.studies.membership.soak_training import Sum
from dynamix_ps.arbitrator.journal import DECISIONS
from dynamix_ps.membership.messages import incarnation_of
from dynamix_ps.run_record.json_lines import JsonLinesTail
from dynamix_ps.run_record.requests import JOIN, LEAVE, request
from dynamix_ps.run_record.run_folder import RunFolder

AFTER_S = 1.0  # so long after its effect an event may still hold workers up
SCHEDULERS = 4  # that may be lost within MINUTE_S: the launcher starts the fifth again, and not the sixth
MINUTE_S = 60.0


@dataclass(slots=True)
class Event:
    """One event.

    Attributes:
        number: from 0 on.
        kind: one of KINDS.
        slot: number of the worker or server to which it happens.
        pid: of its process; 0: it has none.
        at_s: when, on the monotonic clock.
        workers: that were there before.
        servers: the same.
        iteration: the newest sum before it; afterwards that in which it shows.
        effect_s: from the event until the first worker has completed this sum; None: it has none yet.
        pause_s: the longest time without a step of a worker that was there before and after.
    """

    number: int
    kind: str
    slot: int
    pid: int
    at_s: float
    workers: int
    servers: int
    iteration: int
    effect_s: float | None = None
    pause_s: float = 0.0

    @property
    def role(self) -> str:
        """To which it happens, as processes are named."""
        return f"{KINDS[self.kind].role}-{self.slot}"


@dataclass(slots=True)
class Members:
    """Who takes part, as the sums tell, and the coordinator.

    Attributes:
        run: folder of the run.
        servers: that sum. One that is lost is none of them from a time on.
        present: who was in the newest sum.
        awaited: events that have had no effect yet, by name of the role.
        founded: all that the job begins with have met, so that it goes on without one of them.
        servers_lost: how often one of each slot was.
        undecided: events that have had their effect, and after which no window was decided yet.
    """

    folder: Path
    run: RunFolder
    servers: frozenset[int]
    present: frozenset[int] = frozenset()
    awaited: dict[str, Event] = field(default_factory=dict)
    founded: bool = False
    servers_lost: Counter[int] = field(default_factory=Counter)
    undecided: list[Event] = field(default_factory=list)
    _told: dict[tuple[int, int], list[tuple[Sum, float]]] = field(default_factory=dict)  # by rank and start
    _lost_s: dict[tuple[int, str], float] = field(default_factory=dict)  # workers, by rank and incarnation, monotonic
    _gone_s: dict[int, float] = field(default_factory=dict)  # since when a server sums no more, monotonic
    _first_servers: frozenset[int] = field(init=False)
    _of_servers: list[dict[str, Any]] = field(default_factory=list)  # lines that tell of them
    _schedulers_s: list[float] = field(default_factory=list)  # when each was started again, monotonic
    _begins: dict[int, int] = field(default_factory=dict)  # first iteration of every window
    _decided: int = -1  # the newest window that was
    _newest: int = -1
    _tails: dict[Path, JsonLinesTail] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._first_servers = self.servers

    @property
    def told(self) -> dict[int, list[tuple[Sum, float]]]:
        """What workers have written of every sum, with its time, by rank.

        Not of a worker that counted as lost by then: before it hears of it, it may complete a sum that the others make
        anew.
        """
        told = dict[int, list[tuple[Sum, float]]]()
        for (rank, start), sums in sorted(self._told.items()):
            until_s = self._lost_s.get((rank, incarnation_of(start)), math.inf)
            told.setdefault(rank, []).extend(one for one in sums if one[1] <= until_s)
        return told

    def staying(self, role: str) -> frozenset[int]:
        """Those workers or servers present that are not about to go; 0 for a scheduler that may be lost now."""
        recent = [one for one in self._schedulers_s if one > time.monotonic() - MINUTE_S]
        scheduler = frozenset({0} if len(recent) < SCHEDULERS else ())
        there = {"worker": self.present, "server": self.servers, "scheduler": scheduler}[role]
        return frozenset(slot for slot in there if f"{role}-{slot}" not in self.awaited)

    def look(self) -> None:
        """Take in what is new, and end the wait for events that have had their effect."""
        self._look_at_servers()
        for line in self._tails.setdefault(self.run.events_file, JsonLinesTail(self.run.events_file)).read():
            if line["kind"] == "role_restarted" and line["role"] == "scheduler":
                self._schedulers_s.append(_monotonic(line["time_s"]))
        for file in sorted(self.folder.glob("sums-*.jsonl")):
            rank, start = map(int, file.stem.split("-")[1:])
            for line in self._tails.setdefault(file, JsonLinesTail(file)).read():
                present = tuple(line["present"])
                one = Sum(line["iteration"], present, tuple(line["numbers"]), line["factor"])
                self._told.setdefault((rank, start), []).append((one, line["at_s"]))
                if one.iteration > self._newest:
                    self._newest, self.present = one.iteration, frozenset(present)
                    self._take_effect(one.iteration, line["at_s"])
        decided = self._begins.get(self._decided, -1)
        self.undecided = [event for event in self.undecided if event.iteration > decided]

    def begin(self, kind: str, slot: int, pid: int, number: int) -> Event:
        """Something happens now."""
        there = len(self.present), len(self.servers)
        event = Event(number, kind, slot, pid, time.monotonic(), *there, self._newest)
        self.awaited[event.role] = event
        return event

    def _look_at_servers(self) -> None:
        """A server sums until it counts as lost, and when workers have taken one in."""
        files = (self.run.journal_file, *sorted(self.run.workers_dir.glob("*.jsonl")))
        lines = [line for file in files for line in self._tails.setdefault(file, JsonLinesTail(file)).read()]
        self.founded |= any(line["kind"] == "members" for line in lines)
        self._begins |= {line["window"]: line["first_iteration"] for line in lines if line["kind"] == "window"}
        self._decided = max([self._decided, *(line["window"] for line in lines if line["kind"] in DECISIONS)])
        for line in lines:
            if line["kind"] == "lost" and line["role"] == "worker":
                self._lost_s[line["slot"], line["incarnation"]] = _monotonic(line["time_s"])
        self._of_servers += [line for line in lines if line["kind"] == "servers_entered" or _is_lost_server(line)]
        self._of_servers.sort(key=lambda line: float(line["time_s"]))  # one process may write later than another
        self.servers = self._first_servers
        self.servers_lost.clear()
        for line in self._of_servers:
            if line["kind"] == "servers_entered":
                self.servers |= frozenset(line["entered"])
                continue
            self.servers -= {line["slot"]}
            self.servers_lost[line["slot"]] += 1
            self._gone_s[line["slot"]] = _monotonic(line["time_s"])

    def _take_effect(self, iteration: int, at_s: float) -> None:
        for event in list(self.awaited.values()):
            if iteration > event.iteration and self._shows(event, at_s):
                event.iteration, event.effect_s = iteration, at_s - event.at_s
                KINDS[event.kind].after(event)
                self.undecided.append(self.awaited.pop(event.role))

    def _shows(self, event: Event, at_s: float) -> bool:
        """Whether a sum that is complete at this time shows the event, as the newest one."""
        if KINDS[event.kind].role == "server":
            return at_s > self._gone_s.get(event.slot, math.inf) > event.at_s
        if KINDS[event.kind].role == "scheduler":
            return any(at_s > one > event.at_s for one in self._schedulers_s)
        return (event.slot in self.present) == KINDS[event.kind].enters


def _monotonic(time_s: float) -> float:
    return time_s - time.time() + time.monotonic()


def _is_lost_server(line: Mapping[str, Any]) -> bool:
    return bool(line["kind"] == "lost" and line["role"] == "server")


def measure_pauses(events: Iterable[Event], told: Mapping[int, list[tuple[Sum, float]]]) -> None:
    """Set `pause_s` of each."""
    for event in events:
        end_s = event.at_s + (event.effect_s or 0.0) + AFTER_S
        gaps = (
            after_s - before_s
            for rank, sums in told.items()
            if f"worker-{rank}" != event.role
            for (before, before_s), (after, after_s) in itertools.pairwise(sums)
            if before.iteration + 1 == after.iteration and after_s >= event.at_s and before_s <= end_s
        )
        event.pause_s = max(gaps, default=0.0)


@dataclass(frozen=True, slots=True)
class Kind:
    """What can happen to a role.

    Attributes:
        what: in words.
        act: makes it happen.
        role: to which it happens.
        enters: its effect is that the worker is in the sums; otherwise, that it is not. Of a scheduler: that it is
            started again.
        after: when it has had its effect.
    """

    what: str
    act: Callable[[RunFolder, Event], None]
    role: str = "worker"
    enters: bool = False
    after: Callable[[Event], None] = lambda event: None

    def can(self, members: Members, slot: int, pid: int, fewest: int) -> bool:
        """Whether it can happen now to this role, with process `pid`, while `fewest` of its kind are to be there."""
        if f"{self.role}-{slot}" in members.awaited:
            return False
        if self.enters:
            return slot not in members.present and not pid
        staying = members.staying(self.role)
        return slot in staying and bool(pid) and len(staying) > fewest


def _send(number: signal.Signals) -> Callable[[RunFolder, Event], None]:
    return lambda run, event: _signal(event, number)


def _signal(event: Event, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(event.pid, number)


def _ask(what: str) -> Callable[[RunFolder, Event], None]:
    return lambda run, event: request(run, what, event.slot)


def _go_on(event: Event) -> None:
    _signal(event, signal.SIGCONT)


KINDS = {
    "kill": Kind("`kill -9`", _send(signal.SIGKILL)),
    "stop": Kind("stopped for longer than its lease", _send(signal.SIGSTOP), after=_go_on),
    "kill-server": Kind("`kill -9` of a server", _send(signal.SIGKILL), "server"),
    "stop-server": Kind("a server stopped for longer than its lease", _send(signal.SIGSTOP), "server", after=_go_on),
    "kill-scheduler": Kind("`kill -9` of the scheduler", _send(signal.SIGKILL), "scheduler"),
    "notice": Kind("leaves by SIGTERM", _send(signal.SIGTERM)),
    "leave": Kind("leaves by `dynamix leave`", _ask(LEAVE)),
    "join": Kind("comes back by `dynamix join`", _ask(JOIN), enters=True),
}
