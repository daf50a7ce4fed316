"""The data plane as the hooks see it: sums of flat buffers over all workers, nothing else."""

from __future__ import annotations

import logging
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.comm.elastic_job import first_workers
from dynamix_ps.errors import PeerLostError, StallError, TrainingError

if TYPE_CHECKING:
    from dynamix_ps.comm.followed_sums import SumTaker
    from dynamix_ps.comm.plane import WorkerPlane

T = TypeVar("T")
log = logging.getLogger(__name__)
PATIENCE_S = 600.0  # how long sums outside of training wait for the other workers
WAIT_SLICE_S = 1.0  # a wait that may be long returns this often, so that a stall is noticed
_SIGNAL_CHECK_S = 0.5  # a wait returns to Python this often, so that Ctrl-C works
_CHUNK_BYTES = 16 << 20  # of a broadcast: no more memory is needed in between, however much there is to send


class Comm(ABC):
    """Synchronous sums over all workers.

    Every worker declares the same names in the same order, and pushes each name once per step, in the same order on
    all workers, with a contiguous buffer of a fixed size and type. An implementation sends from the buffer and receives
    into it, so no other code may touch it between `push_pull` and a `wait` that returns true.

    Attributes:
        rank: of this worker; its slot.
        size: how many slots there are.
        first_size: number of workers that the job begins with. They have the lowest ranks; the other slots are empty.
        degradations: what the data plane does less well here than it could, and why, one sentence each.
        on_degraded: gets every later degradation when it happens.
        elastic: brings the sums over the loss of a worker or server; None: the sums end with the loss.
        left: this worker has left the job, and takes part in no further sum.
        late: this worker is a joiner. It takes part in no sum before `adopt` has given it what the others know.
        on_sum: gets the number of the buffer and the values of a sum when a wait for it has returned true. They are
            to be used before it returns.
        first_needed_first: of sums that are under way, those that were pushed last are there first.
        least_bucket_bytes: a buffer with fewer is not worth a sum of its own, where it can travel with others; the
            same on all workers.
        sends_again: a pushed buffer may be sent again before its sum is complete. `push_pull` copies the buffer for
            that, `push_pull_into` need not. Then `on_sum` gets every sum, and `follow` is possible.
    """

    name: str
    rank: int
    size: int
    degradations: tuple[str, ...] = ()
    first_needed_first = False
    least_bucket_bytes = sys.maxsize
    on_degraded: Callable[[str], None] = log.warning
    elastic: WorkerPlane | None = None
    left = False
    late = False
    on_sum: Callable[[int, memoryview], None] | None = None
    sends_again = False

    @property
    def first_size(self) -> int:
        return first_workers(self.size)

    @abstractmethod
    def init(self) -> None:
        """Join the other workers. Sets `rank` and `size`. Blocks until all of the first workers are there."""

    @abstractmethod
    def declare(self, name: str, rounded: int = 0, priority: int = 0) -> None:
        """Reserve a key. Same names, same order, on every worker.

        Args:
            rounded: so many values at the beginning may travel rounded, if the cluster file says so.
            priority: of all that waits to be sent, the lowest goes first. A data plane that sums in the order of the
                pushes ignores it.
        """

    @property
    def wires(self) -> Sequence[str]:
        """Among which `set_wire` chooses how float32 values travel, from wide to narrow; empty: that is fixed."""
        return ()

    def set_wire(self, name: str, wire: str) -> None:
        """From the next sum on the rounded values of a declared buffer travel by this one of `wires`.

        At the same place between two sums on every worker. What rounding has left out of earlier sums on a worker is
        forgotten.
        """
        raise NotImplementedError(f"{self.name} has one wire")

    def known(self) -> dict[str, Any]:
        """What all workers know of their sums, in JSON's types, for a joiner."""
        return {}

    def adopt(self, known: Mapping[str, Any]) -> None:
        """Take over what the others know, before the first sum of a joiner."""
        self.late = False

    def follow(self, sums: SumTaker | None) -> None:
        """From now on use the sums of the others and push nothing; None: push again. Needs `sends_again`.

        A joiner calls this between two sums.
        """
        raise NotImplementedError(f"{self.name} takes no worker that comes late")

    def allocate(self, values: int, dtype: str) -> NDArray[Any]:
        """Zeros, shape (values,): memory for a buffer that is summed fast, because roles of this host share it.

        A data plane that shares nothing returns ordinary memory. Collective: all workers call it in the same order,
        with the same arguments. `dtype`: a name that numpy knows.
        """
        return np.zeros(values, dtype)

    def release(self, memory: NDArray[Any]) -> None:  # noqa: B027  # ordinary memory needs nothing
        """Give back memory from `allocate` that is in no sum. It is freed when nothing uses it."""

    def sums_on(self, device: str) -> bool:
        """Whether buffers on such a device ("cpu", "cuda") are summed in place."""
        return True

    def travels_through(self, name: str, memory: NDArray[Any]) -> None:  # noqa: B027  # others know no such buffers
        """The buffer `name` is on a device for which `sums_on` is false. `memory`, from `allocate`, is as large."""

    @abstractmethod
    def push_pull(self, name: str, buffer: Any, begin: int = 0) -> int:
        """Start the in-place sum of `buffer` over all workers and return a handle. Does not block.

        Values before `begin` count as zeros in the sum and stay as they are; `begin` may differ between workers.
        """

    def push_pull_into(self, name: str, buffer: Any, into: Any, begin: int = 0) -> int:
        """Like `push_pull`, but the sum goes to `into`, of the same size and type. Needs `sends_again`.

        No code may change `buffer` before a `wait` that returns true.
        """
        raise NotImplementedError(f"{self.name} sends nothing again")

    def refuse_sums(self, why: str) -> None:
        """From now on every start of a sum in this process raises TrainingError."""

        def refuse(*_: Any, **__: Any) -> NoReturn:
            raise TrainingError(why)

        self.push_pull = self.push_pull_into = refuse  # type: ignore[method-assign]

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
        """Like `wait`, but in one call that no signal interrupts."""

    def total(self, name: str, values: NDArray[Any], on_slow: Callable[[float], None] | None = None) -> NDArray[Any]:
        """Sum `values` over all workers under the declared key `name`; blocks, and may change `values`.

        Calls `on_slow(waited_s)` about once a second while it waits; what that raises ends the wait.

        Raises StallError when the others do not take part, where there is no `on_slow`.
        """
        buffer, began_s = self._buffer(values), time.monotonic()
        handle = self.push_pull(name, buffer)
        while not self.wait(handle, PATIENCE_S if on_slow is None else WAIT_SLICE_S):
            if on_slow is None:
                raise StallError(f"the other workers did not take part in {name!r} within {PATIENCE_S:.0f} s")
            on_slow(time.monotonic() - began_s)
        return self._values(buffer)

    def broadcast(self, name: str, data: bytes, sends: bool | None = None) -> bytes:
        """The `data` of the sender, on every worker: a sum to which the others add zeros. Their own `data` is ignored.

        `sends`: whether this worker is the sender; None: rank 0 is.

        Uses two keys, `<name>.length` and `<name>.bytes`; call it once per name.
        Raises StallError when the others do not take part, PeerLostError when the sender is lost.
        """
        self.declare(f"{name}.length")
        self.declare(f"{name}.bytes")
        sends = self.rank == 0 if sends is None else sends
        mine = memoryview(data if sends else b"")
        told = int(self.total(f"{name}.length", np.array([len(mine) + sends], dtype=np.int64))[0])
        self._check_present(told, name)
        length = told - 1
        received = np.empty(length, dtype=np.uint8)
        chunk = np.empty(min(length, _CHUNK_BYTES) + 1, dtype=np.uint8)  # the last one: who sends is in the sum
        for begin in range(0, length, _CHUNK_BYTES):
            part = mine[begin : begin + _CHUNK_BYTES]
            chunk[: len(part)] = np.frombuffer(part, dtype=np.uint8)
            chunk[len(part) :] = 0
            chunk[-1] = sends
            summed = self.total(f"{name}.bytes", chunk)
            self._check_present(summed[-1], name)
            received[begin : begin + _CHUNK_BYTES] = summed[:-1][: length - begin]
        return received.tobytes()

    def _check_present(self, told: float, name: str) -> None:
        """Raises PeerLostError unless the sender is in the sum."""
        if not told:
            raise PeerLostError(f"the worker that was to send {name!r} is lost; start again from a checkpoint")

    def gather(self, name: str, data: bytes) -> list[bytes]:
        """The `data` of every worker that the job begins with, in the order of ranks, on every worker.

        Uses two keys, `<name>.lengths` and `<name>.bytes`; call it once per name.
        Raises StallError when the others do not take part, PeerLostError when one of them is lost.
        """
        told = self.gather_present(name, data)
        if lost := [rank for rank in range(self.first_size) if rank not in told]:
            names = ", ".join(map(str, lost))
            raise PeerLostError(f"worker {names} is lost, of which {name!r} is needed; start again from a checkpoint")
        return list(told.values())

    def gather_present(self, name: str, data: bytes) -> dict[int, bytes]:
        """The `data` of all present workers by rank, in rising order, on each of them. Uses the keys of `gather`.

        Raises StallError when the others do not take part.
        """
        self.declare(f"{name}.lengths")
        self.declare(f"{name}.bytes")
        lengths = np.zeros(self.size, dtype=np.int64)
        lengths[self.rank] = len(data) + 1  # with a byte that says: this worker is in the sum
        lengths = self.total(f"{name}.lengths", lengths)
        ends = np.cumsum(lengths)
        packed = np.zeros(int(ends[-1]), dtype=np.uint8)
        if lengths[self.rank]:  # else it follows those that are
            packed[ends[self.rank] - len(data) - 1 : ends[self.rank]] = np.frombuffer(data + b"\x01", dtype=np.uint8)
        packed = self.total(f"{name}.bytes", packed)
        parts = (packed[end - size : end].tobytes() for end, size in zip(ends.tolist(), lengths.tolist(), strict=True))
        return {rank: part[:-1] for rank, part in enumerate(parts) if part[-1:] == b"\x01"}

    def _buffer(self, values: NDArray[Any]) -> Any:
        """A buffer with these values; it shares the memory of the array if possible."""
        return values

    def _values(self, buffer: Any) -> NDArray[Any]:
        """The values in a buffer."""
        return np.asarray(buffer)

    def _degraded(self, sentence: str) -> None:
        """Report a degradation, once, on one line."""
        sentence = " ".join(sentence.split())
        if sentence not in self.degradations:
            self.degradations = (*self.degradations, sentence)
            self.on_degraded(sentence)

    @abstractmethod
    def version(self) -> str:
        """Version of the library that sums, for the manifest."""

    @abstractmethod
    def shutdown(self) -> None:
        """Leave. All workers must call it. Frees all sockets and shared memory of this process."""


def interruptible(blocking: Callable[[], T]) -> T:
    """Run a call that blocks in C in another thread, so that Ctrl-C works. Returns what it returns."""
    found: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(blocking())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="comm-call", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_SIGNAL_CHECK_S)
    if errors:
        raise errors[0]
    return found[0]
