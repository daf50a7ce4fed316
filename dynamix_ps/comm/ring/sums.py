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

from dynamix_ps.comm.ring.group import RingGroup


@dataclass(slots=True, eq=False)
class RoundBuffer:
    """A buffer of the open round."""

    name: str
    buffer: Any  # own values, until the round is complete
    begin: int
    sum: Any = None  # the copy in which the newest ring sums
    work: Any = None


class RingSums:
    """The memory of a worker's sums. `RingWorker` decides what happens to it. Not thread safe."""

    def __init__(self) -> None:
        self._open: list[RoundBuffer] = []
        self._kept: dict[str, Any] = {}  # sums of the round before, in the order of its pushes
        self._spare: dict[str, Any] = {}  # memory, by name of the buffer

    def push(self, name: str, buffer: Any, begin: int) -> None:
        """Put a buffer into the open round."""
        self._open.append(RoundBuffer(name, buffer, begin))

    def start(self, number: int, group: RingGroup) -> None:
        """Start the sum of this buffer of the open round, anew where a ring was given up.

        gloo may still write into the copy of that ring.
        """
        part = self._open[number]
        memory = self._spare.pop(part.name, None)
        if memory is None or (memory.shape, memory.dtype) != (part.buffer.shape, part.buffer.dtype):
            memory = _memory_like(part.buffer)
        memory[: part.begin] = 0
        memory[part.begin :] = part.buffer[part.begin :]
        part.sum, part.work = memory, group.sum(memory)

    def work(self, number: int) -> Any:
        """The sum of this buffer, which has started."""
        return self._open[number].work

    def hand_out(self) -> None:
        """Hand out the sums of the open round, and keep a copy."""
        for part in self._open:
            part.buffer[part.begin :] = part.sum[part.begin :]
        self._spare.update(self._kept)
        self._kept = {part.name: part.sum for part in self._open}
        self._open = []

    def to_spread(self, sends: bool, receives: bool) -> dict[str, Any]:
        """The kept sums by name; on a worker that does not send them, memory for them."""
        sums = {part.name: part.buffer for part in self._open} if receives else self._kept
        return sums if sends else {name: like.new_empty(like.shape) for name, like in sums.items()}

    def receive(self, sums: Mapping[str, Any]) -> None:
        """Take these as the sums of the open round."""
        for part in self._open:
            part.sum = sums[part.name]


def _memory_like(buffer: Any) -> Any:
    """New memory. NumPy requests huge pages for a large one, so that the first sums of a joiner are faster."""
    import torch

    return torch.from_numpy(np.empty_like(buffer.numpy()))
