"""The buffers of a worker in sums over a ring: those of the open round, and the sums of the round before.

No server keeps a sum. So each worker keeps an unchanged copy of the sums of its last completed round, because the
training clips and zeroes the sums it gets. A worker that is a round behind gets these sums in the next ring. gloo sums
in a copy, so that the worker's own values stay unchanged until the round is complete. This costs the memory of two
gradients: the copy of the present round, and the sums of the round before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dynamix_ps.comm.ring.group import Over, RingGroup


@dataclass(slots=True, eq=False)
class RoundBuffer:
    """A buffer of the open round."""

    name: str
    buffer: Any  # own values, until the round is complete
    begin: int
    sum: Any = None  # the copy in which the ring sums
    work: Any = None
    is_summed: bool = False


class RingSums:
    """The sums of a worker. While there is no ring, buffers can be pushed, and no sum begins. Not thread safe."""

    def __init__(self) -> None:
        self.round = 0  # the first that is not complete
        self._open: list[RoundBuffer] = []
        self._first_handle = 0  # of the open round
        self._kept: dict[str, Any] = {}  # sums of the round before, in the order of its pushes
        self._spare: dict[str, Any] = {}  # memory, by name of the buffer

    def enter(self, round_number: int) -> None:
        """Begin with this round. Other workers have the sums of the rounds before."""
        self.round = round_number

    def push(self, name: str, buffer: Any, begin: int, group: RingGroup | None) -> int:
        """Put a buffer into the open round, and start its sum if there is a ring. Returns its handle."""
        self._open.append(RoundBuffer(name, buffer, begin))
        if group is not None:
            self._start(self._open[-1], group)
        return self._first_handle + len(self._open) - 1

    @property
    def is_open(self) -> bool:
        """Whether the open round has a push."""
        return bool(self._open)

    def is_complete(self, handle: int) -> bool:
        """Whether the round of this push is complete."""
        return handle < self._first_handle

    def next_part(self) -> RoundBuffer | None:
        """The first part of the open round that is not summed."""
        return next((part for part in self._open if not part.is_summed), None)

    def start(self, group: RingGroup) -> None:
        """Start the sums of all pushes of the open round."""
        for part in self._open:
            self._start(part, group)

    def _start(self, part: RoundBuffer, group: RingGroup) -> None:
        memory = self._spare.pop(part.name, None)
        if memory is None or (memory.shape, memory.dtype) != (part.buffer.shape, part.buffer.dtype):
            memory = _memory_like(part.buffer)
        memory[: part.begin] = 0
        memory[part.begin :] = part.buffer[part.begin :]
        part.sum, part.work = memory, group.sum(memory)

    def give_up(self) -> None:
        """Drop all sums of the open round that the ring has made: gloo may still write into the copies."""
        for part in self._open:
            part.sum, part.work, part.is_summed = None, None, False

    def complete(self) -> None:
        """Hand out the sums of the open round, and keep a copy."""
        for part in self._open:
            part.buffer[part.begin :] = part.sum[part.begin :]
        self._spare.update(self._kept)
        self._kept = {part.name: part.sum for part in self._open}
        self._first_handle += len(self._open)
        self._open = []
        self.round += 1

    def catch_up(self, group: RingGroup, first_round: int, over: Over) -> dict[str, Any] | None:
        """Get the sums of the round before `first_round` if this worker lacks them: the lowest rank with them sends.

        All members of the ring call this. Raises Given, and RuntimeError if a member is gone.
        """
        rounds = group.gather(self.round, over)
        if min(rounds) == first_round:
            return None
        sender, is_behind = rounds.index(first_round), self.round < first_round
        sums = {part.name: part.buffer for part in self._open} if is_behind else self._kept
        if sender != group.index:  # only the one that sends may show what it keeps
            sums = {name: like.new_empty(like.shape) for name, like in sums.items()}
        group.spread(list(sums.values()), sender, over)
        return sums if is_behind else None

    def receive(self, sums: Mapping[str, Any]) -> None:
        """Take these as the sums of the open round."""
        for part in self._open:
            part.sum, part.is_summed = sums[part.name], True


def _memory_like(buffer: Any) -> Any:
    """New memory. NumPy requests huge pages for a large one, so that the first sums of a joiner are faster."""
    import torch

    return torch.from_numpy(np.empty_like(buffer.numpy()))
