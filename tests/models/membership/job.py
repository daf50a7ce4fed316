"""What the model runs: a job, and what happened in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.models.membership.exchange import Exchange
from tests.models.membership.round_table import RoundTable

WAIT_S = 4.0  # of workers that are too few, for others


@dataclass(frozen=True, slots=True)
class Job:
    """What is started.

    Attributes:
        servers: 0: a ring.
        pieces: of every buffer, over servers.
        follows: newcomers follow before they enter; not in a ring.
        spare: slots of workers that are empty at first.
        least: workers; with fewer, the others wait WAIT_S for newcomers.
    """

    workers: int = 4
    servers: int = 2
    pieces: tuple[int, ...] = (2, 1)
    rounds: int = 6
    prefetch: int = 0
    follows: bool = True
    spare: int = 2
    least: int = 1

    @property
    def slots(self) -> int:
        return self.workers + self.spare


@dataclass
class Counts:
    """What happened, so that a tally can tell that it was tried."""

    rounds: int = 0  # of all workers
    decisions: int = 0
    behind: int = 0  # workers that were one round behind at a decision
    entered: int = 0
    followed: int = 0  # rounds of newcomers before they entered
    left: int = 0
    lost: int = 0
    cut_off: int = 0  # workers that end because a sum was lost with a server
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class References:
    """What makes the sums over servers: the references, or recorded ones."""

    exchange: Callable[..., Exchange] = Exchange
    table: Callable[..., RoundTable] = RoundTable
