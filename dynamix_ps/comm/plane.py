"""What the control plane needs of a data plane that goes on when a worker or a server is lost.

A thread beside training, or beside a server, calls these interfaces. `comm/byteps/elastic.py` implements both for
BytePS, and `comm/ring/elastic.py` the one of a worker for a ring.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dynamix_ps.membership.sums import WorkerSums


@dataclass(frozen=True, slots=True)
class PeerFailure:
    """The connection to another role has ended: the role is gone, or cannot be reached.

    Attributes:
        kind: server, worker or scheduler; ring: a ring has failed for a while, and nobody is seen to be gone.
        rank: number of the role among its kind; of a ring, its generation.
    """

    kind: str
    rank: int


class Plane(Protocol):
    """The sums of a server, and what workers have in common with it."""

    def next_loss(self, timeout_s: float) -> PeerFailure | None:
        """The next role that this one has lost; None: there is none within `timeout_s`. Sleeps without the GIL."""
        ...

    def silent(self, quiet_s: float) -> frozenset[int]:
        """Workers that others wait for and that give no sign of life for `quiet_s`. Call this more often than that."""
        ...


class WorkerPlane(Plane, WorkerSums, Protocol):
    """The sums of a worker."""

    @property
    def address(self) -> str:
        """The address at which others reach this worker in a change; empty: they need none."""
        ...

    def answers(self, server: int, limit_s: float) -> bool:
        """Whether this server, which may be a joiner, answers this worker within `limit_s`."""
        ...

    def silent_servers(self, quiet_s: float) -> frozenset[int]:
        """Servers that owe an answer and give no sign of life for `quiet_s`. Call this more often than that."""
        ...

    def depart(self, over: Callable[[], bool]) -> bool:
        """This worker has completed its last round: wait until no other worker needs it, or until `over` says so.

        Returns whether no other worker needs it. Waits a few seconds at most.
        """
        ...
