"""What the coordinator writes to disk before it tells anybody, and the members that follow from it. Pure.

A coordinator changes its members by records alone. So a restarted one has the same members.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

from dynamix_ps.bounded_json import built
from dynamix_ps.membership.messages import Entry, Process, Processes


@dataclass(frozen=True, slots=True)
class Joined:
    """A process has sent `Join` for the first time. After `Founded`, workers vote on it, as the next entry."""

    process: Process


@dataclass(frozen=True, slots=True)
class Founded:
    """All that the job starts with are here; those who have joined are the members of round 0."""


@dataclass(frozen=True, slots=True)
class Lost:
    process: Process
    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    process: Process


@dataclass(frozen=True, slots=True)
class Began:
    """A change of generation has begun."""

    generation: int


@dataclass(frozen=True, slots=True)
class Decided:
    """The round that is made anew."""

    generation: int
    first_round: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The job is over, or goes on from a checkpoint only."""

    reason: str


Record: TypeAlias = Joined | Founded | Lost | Left | Began | Decided | Finished
_KINDS: Mapping[str, type[Record]] = {kind.__name__.lower(): kind for kind in get_args(Record)}


class Members:
    """Everybody the coordinator knows of."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.workers: set[Process] = set()  # newcomers too
        self.servers: set[Process] = set()
        self.founders: Processes = frozenset()  # workers and servers of round 0
        self.gone: set[Process] = set()
        self.entries: list[Entry] = []  # ever: all workers must hold the same, whoever is gone since
        self.generation = 0
        self.first_round = 0
        self.founded = False
        self.finished = False
        for record in records:
            self.apply(record)

    def apply(self, record: Record) -> None:
        """Follow one record."""
        match record:
            case Joined(process):
                self.of_role(process).add(process)
                if self.founded:
                    self.entries.append(Entry(len(self.entries) + 1, process))
            case Founded():
                self.founded, self.founders = True, frozenset(self.workers | self.servers)
            case Lost(process) | Left(process):
                self.of_role(process).discard(process)
                self.gone.add(process)
            case Began(generation):
                self.generation = generation
            case Decided(_, first_round):
                self.first_round = first_round
            case Finished():
                self.finished = True

    def of_role(self, process: Process) -> set[Process]:
        """Workers or servers."""
        return self.workers if process.role == "worker" else self.servers


def as_plain(record: Record) -> dict[str, Any]:
    """The record in JSON's types."""
    return {"kind": type(record).__name__.lower(), **dataclasses.asdict(record)}


def from_plain(line: Mapping[str, Any]) -> Record:
    """The record of a line.

    Raises:
        ValueError: it is none that this version writes.
    """
    try:
        kind = _KINDS[line["kind"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a record of the journal of members: {line!r:.200}") from error
    record: Record = built(line["kind"], {name: value for name, value in line.items() if name != "kind"}, kind)
    return record
