"""The exact global gradient (invariant 1): few flat buckets, sent while backward still runs.

Every worker pushes b_i * g_i, and the sum is divided by B. B is the number of samples really processed; it comes out of
the same sum. For any sizes, zero included, the result is the gradient of one process on the concatenated batch.

A gradient is written once, scaled by b_i, into its place in a bucket. The data plane sends from this place and
receives the sum into it. The sum is scaled by 1/B in place, and this place becomes the gradient of the parameter.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.comm import Comm
from dynamix_ps.errors import TrainingError
from worker_hooks import trailer

WAIT_SLICE_S = 1.0  # a wait returns this often, so that a stall is noticed


def group_parameters(sizes_bytes: Sequence[int], kinds: Sequence[Hashable], bucket_bytes: int) -> list[list[int]]:
    """Which parameters travel together: about `bucket_bytes` each, last layers first (the order backward uses them).

    Args:
        sizes_bytes: of every trainable parameter.
        kinds: type and device of every parameter; a bucket has one kind.

    Raises TrainingError when there is no parameter.
    """
    groups: list[list[int]] = []
    filled = 0
    for number in reversed(range(len(sizes_bytes))):
        size = sizes_bytes[number]
        if groups and filled + size <= bucket_bytes and kinds[groups[-1][0]] == kinds[number]:
            groups[-1].append(number)
            filled += size
        else:
            groups.append([number])
            filled = size
    if not groups:
        raise TrainingError("the model has no parameter that requires a gradient, so there is nothing to train")
    return groups


class Bucket(ABC):
    """Gradients in one flat buffer, which is summed as a whole; a trailer may follow them.

    open -> (backward fills it) -> fill_gaps -> sent and received -> deliver
    """

    name: str
    buffer: Any
    size_bytes: int
    handle: int | None = None

    @abstractmethod
    def open(self, samples: int) -> None:
        """Begin an iteration whose gradients are means over `samples` samples."""

    @abstractmethod
    def is_full(self) -> bool:
        """Whether every gradient is in its place."""

    @abstractmethod
    def fill_gaps(self) -> None:
        """Fill the places that backward has not written: with zeros where a parameter has no gradient."""

    @abstractmethod
    def squared(self) -> float:
        """Squared norm of the gradients in the buffer."""

    @abstractmethod
    def write_trailer(self, values: NDArray[np.float64]) -> None: ...

    @abstractmethod
    def read_trailer(self) -> NDArray[np.floating[Any]]: ...

    @abstractmethod
    def deliver(self, factor: float) -> None:
        """Make the received sum, times `factor`, the gradients of the model."""


class GradientExchange:
    """Sums the weighted gradients of one model over all workers, once per iteration.

    begin -> (backward fills buckets, full ones leave by `send_full`) -> send_rest -> receive
    """

    def __init__(self, comm: Comm, buckets: Sequence[Bucket]) -> None:
        """The last of `buckets` has room for the trailer."""
        self._comm = comm
        self.buckets = buckets
        self._trailer = np.zeros(trailer.length(comm.size))
        self._samples = 0
        self._measure = False
        self._weighted_sq = 0.0
        self._next = 0  # bucket to send; all workers send in one order, because a ring matches buffers by order
        self._open = False
        for bucket in buckets:
            comm.declare(bucket.name)

    @property
    def bytes_per_iteration(self) -> int:
        """Bytes this worker pushes per iteration (it pulls as many)."""
        return sum(bucket.size_bytes for bucket in self.buckets)

    def begin(self, samples: int, measure_norm: bool) -> None:
        """Open an iteration of `samples` samples; until `send_rest`, backward fills the buckets."""
        self._samples, self._measure, self._weighted_sq = samples, measure_norm, 0.0
        for bucket in self.buckets:
            bucket.open(samples)
            bucket.handle = None
        self._open, self._next = True, 0

    def send_full(self) -> None:
        """Send the full buckets, in order, up to the first that is not full. Never sends the last bucket."""
        while self._next < len(self.buckets) - 1 and self.buckets[self._next].is_full():
            bucket = self.buckets[self._next]
            self._add_square(bucket)
            bucket.handle = self._comm.push_pull(bucket.name, bucket.buffer)
            self._next += 1

    def _add_square(self, bucket: Bucket) -> None:
        if self._measure:
            self._weighted_sq += bucket.squared()

    def send_rest(self, contribute: Callable[[float], trailer.Contribution]) -> None:
        """Send all other buckets, and then the last one with the trailer.

        `contribute` gets |g_i|^2, the squared norm of this worker's mean gradient (NaN if not measured or if it
        has no samples), and returns what goes into the trailer.
        """
        self._open = False
        last = self.buckets[-1]
        for bucket in self.buckets[self._next :]:
            bucket.fill_gaps()
        self.send_full()
        self._add_square(last)
        grad_sq = self._weighted_sq / self._samples**2 if self._measure and self._samples else float("nan")
        trailer.encode(contribute(grad_sq), self._comm.rank, self._comm.size, self._trailer)
        last.write_trailer(self._trailer)
        last.handle = self._comm.push_pull(last.name, last.buffer)

    def receive(self, on_slow: Callable[[float], None]) -> trailer.GlobalView:
        """Wait for all sums and make them the gradients of the model: sum(b_i g_i) / B.

        Calls `on_slow(waited_s)` about once a second while waiting; what it raises ends the wait. If a worker
        reports a broken loss, or no worker had a sample, the gradients do not change.
        """
        began_s = time.monotonic()
        for bucket in self.buckets:
            assert bucket.handle is not None
            while not self._comm.wait(bucket.handle, WAIT_SLICE_S):
                on_slow(time.monotonic() - began_s)
        view = trailer.decode(self.buckets[-1].read_trailer(), self._comm.size)
        if view.samples and not view.broken_ranks:
            for bucket in self.buckets:
                bucket.deliver(1.0 / view.samples)
        return view

    def squared_norm(self) -> float:
        """|g|^2 of the global gradient, after `receive`."""
        return sum(bucket.squared() for bucket in self.buckets)
