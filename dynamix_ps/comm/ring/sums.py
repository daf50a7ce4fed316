"""The buffers of a worker in sums over a ring: those of the open round, and the sums of the round before.

There are no servers that keep a sum. So each worker keeps the sums of the last round that it has completed, as they
were: what it hands out, the training clips and zeroes. Whoever is a round behind gets them in the next ring. gloo sums
in a copy, so that own values stay as they are until the round is complete. It costs two gradients of memory: the copy
of the present round, and that of the one before.
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
    """Not thread safe. While there is no ring, buffers may be pushed, and nothing else happens to the open round."""

    def __init__(self) -> None:
        self.round = 0  # the first that is not complete
        self._open: list[RoundBuffer] = []
        self._first_handle = 0  # of the open round
        self._kept: dict[str, Any] = {}  # sums of the round before, in the order of its pushes
        self._spare: dict[str, Any] = {}  # memory, by name of the buffer

    def enter(self, round_number: int) -> None:
        """Begin with this round, of which the sums before are elsewhere."""
        self.round = round_number

    def push(self, name: str, buffer: Any, begin: int, group: RingGroup | None) -> int:
        """Put a buffer into the open round, and start its sum if there is a ring. Returns its handle."""
        self._open.append(RoundBuffer(name, buffer, begin))
        if group is not None:
            self._start(self._open[-1], group)
        return self._first_handle + len(self._open) - 1

    @property
    def is_open(self) -> bool:
        """Whether something is pushed to the open round."""
        return bool(self._open)

    def is_complete(self, handle: int) -> bool:
        """Whether the round of this push is."""
        return handle < self._first_handle

    def next_part(self) -> RoundBuffer | None:
        """The first one of the open round that is not summed."""
        return next((part for part in self._open if not part.is_summed), None)

    def start(self, group: RingGroup) -> None:
        """Sum all that is pushed to the open round."""
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
        """Nothing counts of what a ring has summed so far of the open round: gloo may still write into the copies."""
        for part in self._open:
            part.sum, part.work, part.is_summed = None, None, False

    def complete(self) -> None:
        """Hand the sums of the open round out, and keep them."""
        for part in self._open:
            part.buffer[part.begin :] = part.sum[part.begin :]
        self._spare.update(self._kept)
        self._kept = {part.name: part.sum for part in self._open}
        self._first_handle += len(self._open)
        self._open = []
        self.round += 1

    def catch_up(self, group: RingGroup, first_round: int, over: Over) -> dict[str, Any] | None:
        """The sums of the round before `first_round`, if this worker lacks them: the lowest one that has them sends.

        All members of the ring call it. Raises Given, and RuntimeError if a member is gone.
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
        """These are the sums of the open round."""
        for part in self._open:
            part.sum, part.is_summed = sums[part.name], True


def _memory_like(buffer: Any) -> Any:
    """New memory. NumPy asks for a large one in huge pages, so the first sums of a worker that enters come sooner."""
    import torch

    return torch.from_numpy(np.empty_like(buffer.numpy()))
