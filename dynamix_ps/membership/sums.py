"""What decisions on members need of sums: those of real BytePS, of a ring, or of a model of either. No call waits.

`dynamix_ps/comm/plane.py` has what the I/O around decisions needs beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SumProgress:
    """How far the sums of a worker are.

    Attributes:
        first_incomplete: the first round that is not complete.
        missing: over servers, the missing pieces of each pushed buffer of that round whose sum is not complete.
    """

    first_incomplete: int
    missing: Mapping[int, int] = field(default_factory=dict)


class WorkerSums(Protocol):
    """The sums of a worker."""

    def meet(self, addresses: Mapping[int, str], leaving: Collection[int] = ()) -> None:
        """The members from the next `resume`, `expect` or `enter` on, with this worker: the `address` of each by rank.

        `leaving`: members whose last round is complete on this worker, and perhaps not on others.
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

        `round_number` is their first round. Workers that are in this round send their gradients again.
        """
        ...

    def unanswered(self) -> frozenset[int]:
        """Servers that have a part of the first incomplete round and have not answered."""
        ...

    def use_servers_without(self, lost_servers: Collection[int]) -> None:
        """From the next round on, all servers except these have keys. Called between two rounds."""
        ...

    def expect(self, contributions: int) -> None:
        """From the next round on so many workers contribute. Called between two rounds."""
        ...

    def enter(self, generation: int, round_number: int, contributions: int, lost_servers: Collection[int]) -> int:
        """Begin the first round of a joiner, with so many workers. Called after `meet`, before its first push.

        Returns the first round that the joiner may name in a change: others may lack sums of earlier rounds, which the
        joiner does not have.
        """
        ...
