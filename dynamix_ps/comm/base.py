"""The data plane as the hooks see it: sums of flat buffers over all workers, nothing else."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any

_SIGNAL_CHECK_S = 0.5  # what waits comes back to Python this often, so that Ctrl-C works


class Comm(ABC):
    """Synchronous sums over all workers.

    Every worker declares the same names in the same order, and pushes each name once per step, in one order on all
    workers, with a contiguous buffer of one fixed size and type. Buffers stay where they are: an implementation may
    send from and receive into them, so their owner leaves them alone between `push_pull` and a true `wait`.
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

    def wait(self, handle: int, timeout_s: float) -> bool:
        """Sleep, without the GIL, until the sum is complete. False when `timeout_s` passed first.

        A handle for which True was returned is spent.
        """
        deadline = time.monotonic() + timeout_s
        if self._wait(handle, min(timeout_s, _SIGNAL_CHECK_S)):
            return True
        while (left_s := deadline - time.monotonic()) > 0:
            if self._wait(handle, min(left_s, _SIGNAL_CHECK_S)):
                return True
        return False

    @abstractmethod
    def _wait(self, handle: int, timeout_s: float) -> bool:
        """The same in one go, deaf to signals."""

    @abstractmethod
    def version(self) -> str:
        """Version of the library behind it, for the manifest."""

    @abstractmethod
    def shutdown(self) -> None:
        """Leave. All workers must call it; nothing of this process stays behind (sockets, shared memory)."""


def summable_types() -> frozenset[Any]:
    """Types of torch tensors that the data planes can sum."""
    import torch

    floats, whole = (torch.float16, torch.float32, torch.float64), (torch.uint8, torch.int8, torch.int32, torch.int64)
    return frozenset((*floats, *whole))


def check_buffer(name: str, buffer: Any, types: Collection[Any], devices: Collection[str]) -> None:
    """Raises ValueError for a torch tensor that cannot be summed."""
    if buffer.dtype not in types or buffer.device.type not in devices:
        raise ValueError(
            f"{name}: cannot sum {buffer.dtype} on {buffer.device.type}; "
            f"this build takes {sorted(map(str, types))} on {sorted(devices)}"
        )
    if not buffer.is_contiguous() or buffer.numel() == 0:
        raise ValueError(f"{name}: needs a contiguous buffer with elements, got shape {tuple(buffer.shape)}")


def interruptible(blocking: Callable[[], object]) -> None:
    """Run a call that blocks in C beside the main thread, so that Ctrl-C still works."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            blocking()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="comm-call", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_SIGNAL_CHECK_S)
    if errors:
        raise errors[0]
