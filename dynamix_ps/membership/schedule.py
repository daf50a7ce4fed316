"""Who is planned for which round. Follows from the sums alone, so it is the same on all workers. Pure.

The sum of round r decides on round r + 1 + prefetch: data for the rounds between is on its way already. A worker that
is lost stays planned for these; its samples are owed. A sum is `expected` from those who are planned and not gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dynamix_ps.membership.messages import Process, Processes


@dataclass(frozen=True, slots=True)
class Trailer:
    """What a worker says about itself in a round."""

    leaving: bool = False
    version: int = 0  # of the newest entry it holds
    closing: bool = False  # the training is over; this round holds no gradient


@dataclass(frozen=True, slots=True)
class Schedule:
    """Rounds that are decided: the present one first, then as many as are prefetched."""

    workers: tuple[Processes, ...]  # with samples
    last: tuple[Processes, ...]  # whose last round it is: they put nothing into the sum, and have no state after it
    servers: tuple[Processes, ...]  # of round 0, and by votes; those that are gone, too
    previous: Processes = frozenset()  # who has completed the round before
    version: int = 0  # of the newest entry that was voted in

    @classmethod
    def of_founders(cls, founders: Processes, prefetch: int) -> Schedule:
        """Round 0 and those prefetched."""
        none = frozenset[Process]()
        workers = frozenset(one for one in founders if one.role == "worker")
        servers = founders - workers
        return cls((workers,) * (1 + prefetch), (none,) * (1 + prefetch), (servers,) * (1 + prefetch))

    def after(self, trailers: Mapping[Process, Trailer], entries: Mapping[int, Process]) -> Schedule:
        """The schedule after the present round.

        A vote to leave counts only while somebody stays. Who leaves takes part once more, with nothing: so the others
        wait for it until it has the round before, and it stays until they have.

        Args:
            trailers: of all who are in the sum.
            entries: processes by version, as this worker holds them.
        """
        agreed = max(self.version, min(trailer.version for trailer in trailers.values()))
        entering = {process for version, process in entries.items() if self.version < version <= agreed}
        absent = self.workers[0].difference(trailers)
        leaving = {process for process, trailer in trailers.items() if trailer.leaving}
        staying = (self.workers[-1] - absent) | {process for process in entering if process.role == "worker"}
        workers = staying - leaving or staying
        servers = self.servers[-1] | {process for process in entering if process.role == "server"}
        return Schedule(
            (*self.workers[1:], workers),
            (*self.last[1:], staying - workers),
            (*self.servers[1:], servers),
            frozenset(trailers) - self.last[0],
            agreed,
        )

    def expected(self, gone: Processes) -> Processes:
        """Who contributes to the present round. A process that is gone is no member, whatever was voted."""
        return (self.workers[0] | self.last[0]) - gone
