"""The data plane as the hooks see it: sums of flat buffers over all workers, nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Comm(ABC):
    """Synchronous sums over all workers.

    Every worker declares the same names in the same order, and pushes each name once per step with a
    contiguous buffer of one fixed size and type. Buffers stay where they are: an implementation may send
    from and receive into them, so their owner leaves them alone between `push_pull` and a true `wait`.
    """

    name: str
    rank: int
    size: int

    @abstractmethod
    def init(self) -> None:
        """Join the other workers. Sets `rank` and `size`. Blocks until all are there."""

    @abstractmethod
    def declare(self, name: str) -> None:
        """Reserve a key. Same names, same order, on every worker."""

    @abstractmethod
    def push_pull(self, name: str, buffer: Any) -> int:
        """Start the in-place sum of `buffer` over all workers and return a handle. Does not block."""

    @abstractmethod
    def wait(self, handle: int, timeout_s: float) -> bool:
        """Sleep, without the GIL, until the sum is complete. False when `timeout_s` passed first.

        A handle for which True was returned is spent.
        """

    @abstractmethod
    def version(self) -> str:
        """Version of the library behind it, for the manifest."""

    @abstractmethod
    def shutdown(self) -> None:
        """Leave. All workers must call it; nothing of this process stays behind (sockets, shared memory)."""
