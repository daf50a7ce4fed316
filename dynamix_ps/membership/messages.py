"""Messages of membership between coordinator, workers, servers and the launcher.

Words: a *round* is one sum over all workers. A *generation* is the number of the last decision on losses. T is the
round that is made anew in a generation: the largest among the first incomplete rounds that the workers named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["coordinator", "launcher", "worker", "server"]


@dataclass(frozen=True, slots=True, order=True)
class Process:
    """One start of one role. A slot keeps its number; who comes back to it has another incarnation.

    Attributes:
        address: where others meet it for sums (host:port); empty: they need not.
        state_address: where it takes the state of the training; empty: it has it.
    """

    role: Role
    slot: int
    incarnation: str
    address: str = field(default="", compare=False)
    state_address: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.role} {self.slot} ({self.incarnation})"


def incarnation_of(starts: int) -> str:
    """Of a worker or server that the launcher has started in its slot after `starts` others."""
    return f"start-{starts}"


COORDINATOR = Process("coordinator", 0, "")
Processes: TypeAlias = frozenset[Process]


@dataclass(frozen=True, slots=True)
class Entry:
    """A process that may take part. Workers vote for the newest version they hold, and enter what all of them hold."""

    version: int
    process: Process


@dataclass(frozen=True, slots=True)
class Join:
    """Process to coordinator: here I am. Sent again on every new connection to the coordinator."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """Anyone to coordinator: `process` seems to be dead. The launcher has seen its exit, others a closed connection."""

    process: Process


@dataclass(frozen=True, slots=True)
class Waiting:
    """Worker or server to coordinator: whom it waits for now. Replaces its earlier report; an empty one clears it."""

    processes: Processes


@dataclass(frozen=True, slots=True)
class Broken:
    """Worker to coordinator: the ring of this generation has failed, and all its members seem to live. Decide anew."""

    generation: int


@dataclass(frozen=True, slots=True)
class Freeze:
    """Coordinator to workers: name your first incomplete round, and complete none until `Resume`."""

    generation: int


@dataclass(frozen=True, slots=True)
class Status:
    """Worker to coordinator. `first_incomplete` is None for a newcomer without the state of the training."""

    generation: int
    first_incomplete: int | None


@dataclass(frozen=True, slots=True)
class MayPush:
    """Coordinator to servers: these workers may push, newcomers included. Replaces what was told before."""

    workers: Processes


@dataclass(frozen=True, slots=True)
class Resume:
    """Coordinator to workers: at T send again; at T-1 finish. A newcomer is welcomed with it, too."""

    generation: int
    first_round: int
    gone: Processes  # lost or left, ever: none of them is a member again, whatever was voted
    without_state: Processes = frozenset()  # newcomers that are refused: who would have given it may be lost
    founders: Processes = frozenset()  # members of round 0, workers and servers
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Enter:
    """Coordinator to workers: one more entry to vote for."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Ready:
    """Newcomer to coordinator: I have the state of the training."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Worker to coordinator and servers: all others have my last round; my connections close now, and I am not lost."""


@dataclass(frozen=True, slots=True)
class AskLeave:
    """Launcher to coordinator: `process` shall leave. Whether it does, the workers decide by their votes.

    Told again on every new connection, as `LeaveAsked` is, and counts once: later requests have larger numbers.
    """

    process: Process
    number: int  # of requests to this process, from 1 on


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """Coordinator to a worker: vote to leave."""

    number: int  # of the request


@dataclass(frozen=True, slots=True)
class Finish:
    """Coordinator to workers, before `Resume`: too few are left, so save after the rounds at hand, and end."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Coordinator or server to a process that is no member, or no longer: exit, return as a newcomer."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Coordinator to everyone: the job is over, or goes on from a checkpoint only."""

    reason: str


ToCoordinator: TypeAlias = Join | Suspect | Waiting | Broken | Status | Ready | Leave | AskLeave
FromCoordinator: TypeAlias = Freeze | MayPush | Resume | Enter | LeaveAsked | Finish | Refused | Ended
