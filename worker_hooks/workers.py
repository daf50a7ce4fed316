"""Which workers of a training a process computes for: one, and in a rehearsal all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dynamix_ps.comm import Comm


@dataclass(frozen=True, slots=True)
class Workers:
    """All workers of a training, and those of this process.

    A worker's rank is its slot. There may be more slots than workers: an empty one has no samples, and is in no sum.
    A process computes the batches of its workers as one: neighbours in the order of slots take samples that follow one
    another.
    """

    count: int  # of slots
    here: range  # slots of the workers of this process, at least one
    slots: tuple[int, ...] = ()  # of every process, in the order of their ranks in the data plane; empty: this is all
    told: int = 0  # numbers that each worker tells the others in every sum, behind the trailer (own_size.py)
    later: frozenset[int] = frozenset()  # slots in which there is no process yet when training begins

    @classmethod
    def one_per_process(cls, comm: Comm) -> Workers:
        """Every process of the data plane is one worker."""
        later = frozenset(range(comm.first_size, comm.size))
        return cls(comm.size, range(comm.rank, comm.rank + 1), tuple(range(comm.size)), later=later)

    @property
    def first(self) -> tuple[int, ...]:
        """The slots of the workers with which training begins."""
        return tuple(slot for slot in self.slots or self.here if slot not in self.later)

    @property
    def leader(self) -> int:
        """The slot of the worker that leads when training begins: it does what one worker does for all."""
        return min(self.first)

    def by_slot(self, told: tuple[int, ...]) -> tuple[int, ...]:
        """What every process has told, in the order of slots; 0 for the empty ones."""
        if not self.slots:
            return told * self.count
        of_slot = dict(zip(self.slots, told, strict=True))
        return tuple(of_slot.get(slot, 0) for slot in range(self.count))

    def slots_of(self, processes: Iterable[int]) -> tuple[int, ...]:
        """The slots of the workers in these processes, which have ranks in the data plane."""
        return tuple(self.slots[process] for process in processes) if self.slots else tuple(self.here)
