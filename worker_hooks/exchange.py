"""The exact global gradient (invariant 1): few flat buckets, sent while backward still runs.

Every worker pushes b_i * g_i and the sum is divided by B, the number of samples really processed, which
comes out of the same sum. Whatever the sizes are, zero included, the result is the gradient of one process
on the concatenated batch.

A gradient is written once, scaled by b_i, into its place in a bucket; the data plane sends from there and
receives into it; the sum is scaled by 1/B in place and the parameter's gradient then *is* that place.
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
from worker_hooks import trailer as tail_layout

WAIT_SLICE_S = 1.0  # how long a wait sleeps before it looks at the stall clock


def group_parameters(sizes_bytes: Sequence[int], kinds: Sequence[Hashable], bucket_bytes: int) -> list[list[int]]:
    """Which parameters travel together: about `bucket_bytes` each, last layers first (the order backward uses them).

    Args:
        sizes_bytes: of every trainable parameter.
        kinds: type and device of each; a bucket has one kind.

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
    """A flat run of gradients that travels as one buffer; a tail may follow them.

    open -> (backward fills it) -> fill_gaps -> sent and received -> deliver
    """

    name: str
    buffer: Any
    size_bytes: int
    handle: int | None = None

    @abstractmethod
    def open(self, samples: int) -> None:
        """Expect gradients of the mean over so many samples."""

    @abstractmethod
    def is_full(self) -> bool:
        """Whether every gradient is in its place."""

    @abstractmethod
    def fill_gaps(self) -> None:
        """Put into their places what backward left out: zeros where there is no gradient."""

    @abstractmethod
    def squared(self) -> float:
        """Squared norm of the gradients in it."""

    @abstractmethod
    def write_tail(self, values: NDArray[np.float64]) -> None: ...

    @abstractmethod
    def read_tail(self) -> NDArray[np.floating[Any]]: ...

    @abstractmethod
    def deliver(self, factor: float) -> None:
        """Make what was received, times `factor`, the gradients of the model."""


class GradientExchange:
    """Sums the weighted gradients of one model over all workers, once per iteration.

    begin -> (backward fills buckets, full ones leave by `send_full`) -> send_rest -> receive
    """

    def __init__(self, comm: Comm, buckets: Sequence[Bucket]) -> None:
        """The last of `buckets` has room for the tail."""
        self._comm = comm
        self.buckets = buckets
        self._tail = np.zeros(tail_layout.length(comm.size))
        self._samples = 0
        self._measure = False
        self._weighted_sq = 0.0
        self._next = 0  # bucket to send; all workers send in the same order, as a ring knows no names
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
        """Send what is full and not yet sent, up to the first bucket that is not, and never the last."""
        while self._next < len(self.buckets) - 1 and self.buckets[self._next].is_full():
            bucket = self.buckets[self._next]
            self._add_square(bucket)
            bucket.handle = self._comm.push_pull(bucket.name, bucket.buffer)
            self._next += 1

    def _add_square(self, bucket: Bucket) -> None:
        if self._measure:
            self._weighted_sq += bucket.squared()

    def send_rest(self, contribute: Callable[[float], tail_layout.Contribution]) -> None:
        """Send what backward did not fill, and the last bucket with the tail.

        `contribute` gets |g_i|^2, the squared norm of this worker's mean gradient (NaN if not measured or if it
        has no samples), and returns what goes into the tail.
        """
        self._open = False
        last = self.buckets[-1]
        for bucket in self.buckets[self._next :]:
            bucket.fill_gaps()
        self.send_full()
        self._add_square(last)
        grad_sq = self._weighted_sq / self._samples**2 if self._measure and self._samples else float("nan")
        tail_layout.encode(contribute(grad_sq), self._comm.rank, self._comm.size, self._tail)
        last.write_tail(self._tail)
        last.handle = self._comm.push_pull(last.name, last.buffer)

    def receive(self, on_slow: Callable[[float], None]) -> tail_layout.GlobalView:
        """Wait for all sums and make them the gradients of the model: sum(b_i g_i) / B.

        Calls `on_slow(waited_s)` about once a second while waiting; what it raises ends the wait. If a worker
        reports a broken loss, or nobody had a sample, the gradients are left as they are.
        """
        began_s = time.monotonic()
        for bucket in self.buckets:
            assert bucket.handle is not None
            while not self._comm.wait(bucket.handle, WAIT_SLICE_S):
                on_slow(time.monotonic() - began_s)
        view = tail_layout.decode(self.buckets[-1].read_tail(), self._comm.size)
        if view.samples and not view.broken_ranks:
            for bucket in self.buckets:
                bucket.deliver(1.0 / view.samples)
        return view

    def squared_norm(self) -> float:
        """|g|^2 of the global gradient, after `receive`."""
        return sum(bucket.squared() for bucket in self.buckets)
