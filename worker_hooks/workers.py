"""Which workers of a training a process computes for: one, and in a rehearsal all of them."""

from __future__ import annotations

from dataclasses import dataclass

from dynamix_ps.comm import Comm


@dataclass(frozen=True, slots=True)
class Workers:
    """All workers of a training, and those of this process.

    A process computes the batches of its workers as one: neighbours in the order of ranks take samples that follow one
    another.
    """

    count: int
    here: range  # ranks of the workers of this process, at least one

    @classmethod
    def one_per_process(cls, comm: Comm) -> Workers:
        """Every process of the data plane is one worker."""
        return cls(comm.size, range(comm.rank, comm.rank + 1))
