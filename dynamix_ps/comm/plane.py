"""What the control plane needs of a data plane that goes on when a worker or a server is lost.

A thread beside training, or beside a server, calls these. `comm/byteps/elastic.py` has both for BytePS,
`comm/ring/elastic.py` that of a worker for a ring.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from dynamix_ps.config import variables


@dataclass(frozen=True, slots=True)
class PeerFailure:
    """A role whose connection to this one has ended: it is gone, or cannot be reached.

    Attributes:
        kind: server, worker or scheduler.
        rank: which one of this kind.
    """

    kind: str
    rank: int


class SumProgress(Protocol):
    """How far the sums of a worker are."""

    @property
    def first_incomplete(self) -> int:
        """The first round that is not complete."""
        ...


class Plane(Protocol):
    """What both sides have."""

    def next_loss(self, timeout_s: float) -> PeerFailure | None:
        """The next role that this one has lost; None: there is none within `timeout_s`. Sleeps without the GIL."""
        ...

    def silent(self, quiet_s: float) -> frozenset[int]:
        """Workers for whose part others wait, and that give no sign of life for `quiet_s`. Call it more often."""
        ...


class WorkerPlane(Plane, Protocol):
    """The sums of a worker."""

    @property
    def address(self) -> str:
        """Where others find what they need of this worker to go on; empty: they need nothing."""
        ...

    def meet(self, addresses: Mapping[int, str], leaving: Collection[int] = ()) -> None:
        """With whom it goes on at the next `resume`, `expect` or `enter`, itself too: the `address` of each by rank.

        `leaving`: those of them whose last round this worker has completed, and others perhaps not.
        """
        ...

    def freeze(self) -> SumProgress:
        """No round completes from now on, until `resume`."""
        ...

    def status(self) -> SumProgress:
        """How far the sums are."""
        ...

    def resume(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> None:
        """Go on with so many workers, over the servers that are not lost.

        `round_number` is the first round that they make: who is there sends again.
        """
        ...

    def unanswered(self) -> frozenset[int]:
        """Servers that have a part of the first incomplete round and have not answered."""
        ...

    def use_servers_without(self, lost_servers: Collection[int]) -> None:
        """From the next round on all servers have keys but these. Called between two rounds."""
        ...

    def answers(self, server: int, limit_s: float) -> bool:
        """Whether this server, which may have come late, answers this worker within `limit_s`."""
        ...

    def silent_servers(self, quiet_s: float) -> frozenset[int]:
        """Servers whose answer is missing, and that give no sign of life for `quiet_s`. Call it more often."""
        ...

    def expect(self, contributions: int) -> None:
        """From the next round on so many workers contribute. Called between two rounds."""
        ...

    def depart(self, over: Callable[[], bool]) -> bool:
        """This worker has completed its last round: wait until no other one needs it for theirs, or until it is `over`.

        Returns whether no other one does. Waits a few seconds at most.
        """
        ...

    def enter(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> int:
        """The first round of a worker that comes late, of so many workers. Called after `meet`, before its first push.

        Returns the first round that it may name in a change: before, others may lack what it cannot give them.
        """
        ...


class ServerPlane(Plane, Protocol):
    """The sums of a server."""

    def fence(self, generation: int, round_number: int) -> None:
        """From `round_number` on, only `generation` and later ones count. What is there of these rounds is dropped."""
        ...


def is_elastic(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether workers and servers of this run may be lost while the others go on."""
    return environ.get(variables.ELASTIC) == "1"


def first_workers(slots: int, environ: Mapping[str, str] = os.environ) -> int:
    """How many workers the job begins with; the other slots are empty."""
    return int(environ.get(variables.FIRST_WORKERS) or slots)


def is_late(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this worker comes to a job that trains already, in an empty slot."""
    return is_elastic(environ) and environ.get(variables.STARTS, "0") != "0"
