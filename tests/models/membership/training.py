"""A training whose state is its history, for the model of membership: what every round was made of, and whose samples.

Samples are numbered. A round takes those that are owed first, then the next ones, as many as it has planned workers
times `SHARE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dynamix_ps.membership.data_messages import Part
from dynamix_ps.membership.messages import Process, Processes
from dynamix_ps.membership.schedule import Schedule

SHARE = 2

Samples = tuple[int, ...]
Slices = tuple[tuple[Process, Samples], ...]


@dataclass(frozen=True, slots=True)
class Training:
    """Weights, optimizer and cursor of the data, in one."""

    rounds: tuple[Slices, ...] = ()  # of those that are completed: who gave which samples
    planned: tuple[Slices, ...] = ()  # of the present round, and of those prefetched
    owed: Samples = ()
    cursor: int = 0  # the first sample that nobody has taken

    @classmethod
    def begun(cls, founders: Processes, prefetch: int) -> Training:
        """Before round 0."""
        state = cls()
        for _ in range(1 + prefetch):
            state = state.plan(founders)
        return state

    def plan(self, workers: Processes) -> Training:
        """One more round, of these workers."""
        wanted = SHARE * len(workers)
        fresh = max(0, wanted - len(self.owed))
        taken = self.owed[:wanted] + tuple(range(self.cursor, self.cursor + fresh))
        slices = tuple(
            (worker, taken[SHARE * place : SHARE * (place + 1)]) for place, worker in enumerate(sorted(workers))
        )
        return Training(self.rounds, (*self.planned, slices), self.owed[wanted:], self.cursor + fresh)

    def slice_of(self, worker: Process) -> Samples:
        """This worker's samples of the present round."""
        return dict(self.planned[0])[worker]

    def step(self, schedule: Schedule, parts: Mapping[Process, Part]) -> Training:
        """After the present round: what was not in its sum is owed."""
        given: Slices = tuple(sorted((worker, part.gradient or ()) for worker, part in parts.items()))
        absent = tuple(sample for worker, samples in self.planned[0] if worker not in parts for sample in samples)
        stepped = Training((*self.rounds, given), self.planned[1:], self.owed + absent, self.cursor)
        return stepped.plan(schedule.workers[-1])

    def wrong_samples(self) -> str:
        """A sample that was taken twice, or never; else nothing."""
        slices = [slices for each in (self.rounds, self.planned) for slices in each]
        taken = sorted([*self.owed, *(sample for part in slices for _, samples in part for sample in samples)])
        return (
            "" if taken == list(range(self.cursor)) else f"samples {taken}, expected 0 to {self.cursor - 1}, each once"
        )
