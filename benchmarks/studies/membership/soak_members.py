"""Who takes part in the job of the soak, as its sums and its records tell, and whether what happened shows there."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.studies.membership.soak_events import BACK, GONE, KINDS, SPARED, Kind
from benchmarks.studies.membership.soak_site import Event
from benchmarks.studies.membership.soak_training import Sum
from dynamix_ps.arbitrator.journal import DECISIONS
from dynamix_ps.membership.messages import incarnation_of
from dynamix_ps.run_record.json_lines import JsonLinesTail
from dynamix_ps.run_record.run_folder import RunFolder

AFTER_S = 1.0  # so long after its effect an event may still hold workers up
SCHEDULERS = 4  # that may be lost within MINUTE_S: the launcher starts the fifth again, and not the sixth
MINUTE_S = 60.0
BEHIND_S = 10.0  # so long after the loss of a server a worker may end that lacks a sum of it


class Loss(NamedTuple):
    """A worker or server that counts as lost.

    Attributes:
        role: as processes are named.
        reason: as the coordinator tells.
        at_s: on the monotonic clock.
    """

    role: str
    incarnation: str
    reason: str
    at_s: float

    @property
    def slot(self) -> int:
        return int(self.role.rpartition("-")[2])


@dataclass(slots=True)
class Members:
    """Who takes part, as the sums tell, and the coordinator.

    Attributes:
        run: folder of the run.
        servers: that sum. One that is lost is none of them from a time on.
        present: who was in the newest sum.
        awaited: events that are not over, by name of the role.
        founded: all that the job begins with have met, so that it goes on without one of them.
        undecided: events that are over, and after which no window was decided yet.
    """

    folder: Path
    run: RunFolder
    servers: frozenset[int]
    present: frozenset[int] = frozenset()
    awaited: dict[str, Event] = field(default_factory=dict)
    founded: bool = False
    undecided: list[Event] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    _told: dict[tuple[int, int], list[tuple[Sum, float]]] = field(default_factory=dict)  # by rank and start
    _lost_s: dict[tuple[str, str], float] = field(default_factory=dict)  # by role and incarnation, monotonic
    _entered: list[tuple[float, int, bool]] = field(default_factory=list)  # servers: when, slot, True
    _first_servers: frozenset[int] = field(init=False)
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
        lost_s = {(loss.role, loss.incarnation): loss.at_s for loss in self.losses}
        told = dict[int, list[tuple[Sum, float]]]()
        for (rank, start), sums in sorted(self._told.items()):
            until_s = lost_s.get((f"worker-{rank}", incarnation_of(start)), math.inf)
            told.setdefault(rank, []).extend(one for one in sums if one[1] <= until_s)
        return told

    def can(self, kind: Kind, name: str, slot: int, pid: int, fewest: int) -> bool:
        """Whether this can happen now to a role, with process `pid`, while `fewest` of its kind are to be there."""
        if name in self.awaited:
            return False
        if kind.effect == BACK:
            return slot not in self.present and not pid
        if kind.effect == SPARED:
            return bool(pid)
        staying = self.staying(kind.role)
        return slot in staying and bool(pid) and len(staying) > fewest

    def staying(self, role: str) -> frozenset[int]:
        """Those workers or servers present that are not about to go; 0 for a scheduler that may be lost now."""
        recent = [one for one in self._schedulers_s if one > time.monotonic() - MINUTE_S]
        scheduler = frozenset({0} if len(recent) < SCHEDULERS else ())
        there = {"worker": self.present, "server": self.servers, "scheduler": scheduler}[role]
        going = {one.slot for one in self.awaited.values() if _kind(one).role == role and _kind(one).effect != SPARED}
        return there - going

    def look(self) -> None:
        """Take in what is new, and which events show in it."""
        self._look_at_records()
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

    def begin(self, number: int, kind: str, role: str, pid: int, lasts_s: float, strength: float) -> Event:
        """Something happens now."""
        there = len(self.present), len(self.servers)
        event = Event(number, kind, role, pid, time.monotonic(), lasts_s, strength, *there, self._newest)
        self.awaited[event.role] = event
        return event

    def over(self, event: Event) -> None:
        """It has had its effect, and lasts no longer."""
        del self.awaited[event.role]
        self.undecided.append(event)

    def _look_at_records(self) -> None:
        """A server sums until it counts as lost, and when workers have taken one in."""
        files = (self.run.journal_file, *sorted(self.run.workers_dir.glob("*.jsonl")))
        lines = [line for file in files for line in self._tails.setdefault(file, JsonLinesTail(file)).read()]
        self.founded |= any(line["kind"] == "members" for line in lines)
        self._begins |= {line["window"]: line["first_iteration"] for line in lines if line["kind"] == "window"}
        self._decided = max([self._decided, *(line["window"] for line in lines if line["kind"] in DECISIONS)])
        for line in lines:
            if line["kind"] == "lost":
                self._lost_s[_name(line), line["incarnation"]] = _monotonic(line["time_s"])
            elif line["kind"] == "servers_entered":
                self._entered += [(time.monotonic(), slot, True) for slot in line["entered"]]
        self._look_at_losses()
        lost = [(loss.at_s, loss.slot, False) for loss in self.losses if loss.role.startswith("server")]
        self.servers = self._first_servers
        for _, slot, enters in sorted(lost + self._entered):
            self.servers = self.servers | {slot} if enters else self.servers - {slot}

    def _look_at_losses(self) -> None:
        """The coordinator's own journal has all; that of the arbitrator says when, unless the disk was full."""
        file = self.run.membership_file
        lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
        found = (one for line in lines for one in json.loads(line) if one["kind"] == "lost")
        self.losses = [
            Loss(
                name := _name(one["process"]),
                incarnation := one["process"]["incarnation"],
                one["reason"],
                self._lost_s.setdefault((name, incarnation), time.monotonic()),
            )
            for one in found
        ]

    def _take_effect(self, iteration: int, at_s: float) -> None:
        for event in self.awaited.values():
            if event.effect_s is None and iteration > event.iteration and self._shows(event, at_s):
                event.iteration, event.effect_s = iteration, at_s - event.at_s

    def _shows(self, event: Event, at_s: float) -> bool:
        """Whether a sum that is complete at this time shows the event, as the newest one."""
        kind = _kind(event)
        if kind.effect == SPARED:
            return at_s > (event.healed_s or math.inf)
        if kind.role == "server":
            return any(loss.role == event.role and at_s > loss.at_s > event.at_s for loss in self.losses)
        if kind.role == "scheduler":
            return any(at_s > one > event.at_s for one in self._schedulers_s)
        return (event.slot in self.present) == (kind.effect == BACK)

    def without_cause(self, events: Iterable[Event]) -> Iterator[str]:
        """Losses that no event explains, told in words.

        An event explains the loss of the process that it strikes, also long afterwards: the coordinator may be away. A
        worker also ends by itself where it lacks a sum that only a lost server had, or has not entered yet.
        """
        struck = [event for event in events if _kind(event).effect == GONE]
        servers_s = [loss.at_s for loss in self.losses if loss.role.startswith("server")]
        for loss in self.losses:
            own = [one for one in struck if (one.role, one.incarnation) == (loss.role, loss.incarnation)]
            if any(one.at_s < loss.at_s for one in own):
                continue
            start = int(loss.incarnation.rpartition("-")[2])
            if loss.role.startswith("worker") and (
                not self._told.get((loss.slot, start))
                or ("lease" not in loss.reason and any(0 <= loss.at_s - one_s < BEHIND_S for one_s in servers_s))
            ):
                continue
            yield f"{loss.role} counts as lost without cause at {loss.at_s:.1f} s: {loss.reason}"


def _kind(event: Event) -> Kind:
    return KINDS[event.kind]


def _name(process: Mapping[str, Any]) -> str:
    return f"{process['role']}-{process['slot']}"


def _monotonic(time_s: float) -> float:
    return time_s - time.time() + time.monotonic()


def measure_pauses(events: Iterable[Event], told: Mapping[int, list[tuple[Sum, float]]]) -> None:
    """Set `pause_s` of each."""
    for event in events:
        end_s = max(event.at_s + (event.effect_s or 0.0), event.healed_s or 0.0) + AFTER_S
        gaps = (
            after_s - before_s
            for rank, sums in told.items()
            if f"worker-{rank}" != event.role
            for (before, before_s), (after, after_s) in itertools.pairwise(sums)
            if before.iteration + 1 == after.iteration and after_s >= event.at_s and before_s <= end_s
        )
        event.pause_s = max(gaps, default=0.0)
