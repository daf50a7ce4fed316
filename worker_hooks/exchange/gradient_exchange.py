"""The exact global gradient (invariant 1): few flat buckets, sent while backward still runs.

Every worker pushes b_i / B times its mean gradient g_i. All workers know b_i and B from the plan, and the trailer
proves that each has really processed its b_i. For any sizes, zero included, the sum is the gradient of one process on
the concatenated batch. The weights b_i / B add up to 1, so a gradient that is global already stays as it is in another
sum.

Where the script gives the number w_i of units (tokens) that its loss is a mean over, a worker knows W = sum(w_i) only
after the sum. It pushes w_i / B times g_i, and `deliver` multiplies the sum by B / W.

A gradient is written once, scaled, into its place in a bucket. The data plane sends from this place and receives the
sum into it, and this place becomes the gradient of the parameter. Where the data plane may have to send again what was
sent, because a worker is lost, the sum has a place of its own.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.comm import Comm
from dynamix_ps.comm.base import WAIT_SLICE_S
from dynamix_ps.errors import TrainingError
from worker_hooks.exchange.trailer import Contribution, GlobalView, Present, SumTrailer
from worker_hooks.workers import Workers

_LARGEST, _SMALLEST = 7 / 64, 1 / 128  # parts of all gradients in a bucket: most leave while backward runs


def bucket_layout(
    sizes_bytes: Sequence[int], kinds: Sequence[Hashable], most_bytes: int, least_bytes: int
) -> list[list[int]]:
    """Numbers of the parameters in each bucket, last layers first: in the order in which backward reaches them.

    A bucket is closed when it has a ninth of all bytes, or what `most_bytes` and `least_bytes` make of that. The first
    buckets are smaller, so that sums begin early in the backward pass; so are those before the end, whose sums the
    first layers of the next forward pass wait for. The last bucket has the trailer, and no parameter if there are
    others: then no gradient waits for the trailer.

    Args:
        sizes_bytes: of every trainable parameter.
        kinds: type and device of every parameter; a bucket has one kind, but for parameters without elements.
        most_bytes: a bucket with so many is closed.
        least_bytes: one with fewer is not worth a sum of its own, if that is not more than `most_bytes`.

    Raises TrainingError when there is no parameter.
    """
    whole, groups = sum(sizes_bytes), list[list[int]]()
    smallest = min(most_bytes, max(least_bytes, int(whole * _SMALLEST)))
    filled = full = placed = 0
    for number in sorted(range(len(sizes_bytes)), key=lambda one: (sizes_bytes[one] > 0, one), reverse=True):
        size, left = sizes_bytes[number], whole - placed
        is_open = bool(groups) and (filled < full or (left < smallest and filled < most_bytes))
        if groups and not size:  # no data plane sums an empty buffer
            alike = [group for group in groups if kinds[group[0]] == kinds[number]]
            (alike or groups)[-1].append(number)
        elif is_open and kinds[groups[-1][0]] == kinds[number]:
            groups[-1].append(number)
            filled += size
        else:
            groups.append([number])
            filled, full = size, min(most_bytes, max(smallest, min(int(whole * _LARGEST), placed, left // 2)))
        placed += size
    if not groups:
        raise TrainingError("the model has no parameter that requires a gradient, so there is nothing to train")
    return groups if len(groups) == 1 else [*groups, []]


class Bucket(ABC):
    """Gradients in one flat buffer, which is summed as a whole; a trailer may follow them.

    open -> (backward fills it) -> fill_gaps -> sent and received -> deliver
    """

    name: str
    buffer: Any  # where the sum arrives
    own: Any  # what is sent: the same, or a buffer that stays as it is until the sum is complete
    memory: NDArray[Any] | None = None  # of `buffer`, if the data plane has allocated it
    size_bytes: int
    trailer_begin: int  # values before the trailer
    rounded: int  # values at the beginning that are gradients: they may travel in fewer bytes
    parameters: Sequence[Any]  # none: it is that of the trailer alone
    lacking: Sequence[int] = ()  # numbers of parameters, when it is sent: this worker has no gradient of them
    in_place = False  # the gradients of all parameters are where the sum arrives, so that none is to be delivered
    handle: int | None = None

    @abstractmethod
    def open(self, weight: float, has_samples: bool) -> None:
        """Begin a sum in which this worker's gradients have this weight.

        With weight 0 they are zeros, NaN too. Without samples they are none.
        """

    @abstractmethod
    def is_full(self) -> bool:
        """Whether every gradient is in its place."""

    @abstractmethod
    def fill_gaps(self) -> None:
        """Fill the places that backward has not written: with zeros where a parameter has no gradient."""

    @abstractmethod
    def squared(self, own: bool = False) -> float:
        """Squared norm of the summed gradients, or of this worker's `own` before they are sent."""

    @abstractmethod
    def is_finite(self) -> bool:
        """Whether all summed gradients are finite numbers."""

    @abstractmethod
    def clear(self) -> None:
        """Make the gradients that `deliver` has made those of the parameters zeros."""

    @abstractmethod
    def write_trailer(self, values: NDArray[np.float64]) -> None: ...

    @abstractmethod
    def read_trailer(self) -> NDArray[np.floating[Any]]:
        """A copy of the summed trailer."""

    @abstractmethod
    def scale(self, factor: float) -> None:
        """Multiply the summed gradients."""

    @abstractmethod
    def scale_statistics(self, factor: float) -> None:
        """Multiply the summed running statistics; 0: put the model's own in their place."""

    @abstractmethod
    def deliver(self, present: NDArray[np.bool_]) -> None:
        """Make the received sum the gradients of those parameters that any worker has one of."""

    def arrived(self, factor: float, present: NDArray[np.bool_] | None) -> None:
        """Its sum is there: make it, times `factor`, the gradients. `present` as in `deliver`; none: of all."""
        if factor != 1.0 and self.parameters:
            self.scale(factor)
        if present is not None:
            self.deliver(present)


class LateBuckets:
    """Buckets whose sums come after that of the trailer: those of one iteration, and then of the next one.

    Attributes:
        due: what happens with each once its sum is there; in the order in which sums are expected.
        has_stepped: an optimizer has changed weights by this sum.
        arriving: held while one arrives: a thread of the script may want a gradient, too.
    """

    def __init__(self) -> None:
        self.due: dict[Bucket, Callable[[], object]] = {}
        self.has_stepped = False
        self.arriving = threading.RLock()

    def begin(self, buckets: Sequence[Bucket]) -> None:
        """These are late from now on."""
        self.due, self.has_stepped = dict.fromkeys(buckets, _nothing), False

    def arrive(self, bucket: Bucket, wait: Callable[[], None]) -> None:
        """`wait` for the sum of a bucket, unless another thread has."""
        with self.arriving:
            if bucket in self.due:
                wait()
                try:
                    self.due.pop(bucket)()
                except BaseException:  # Ctrl-C
                    self.due[bucket] = _half_done
                    raise
                if not self.due:
                    self.end()

    def end(self) -> None:  # those of frameworks do more
        """None is late any more."""


def _nothing() -> None:
    """For sums that do not become the gradients of the model."""


def _half_done() -> None:
    raise TrainingError("the script was interrupted while it got its gradients, and goes on; end it after Ctrl-C")


class GradientExchange:
    """Sums the weighted gradients of one model over all workers.

    begin -> (backward fills buckets, full ones leave by `send_full`) -> send_rest -> receive -> deliver

    Where `receive` waits for the trailer alone, the other buckets are late, and `arrive` follows for each of them.
    """

    late: LateBuckets | None = None  # none: no bucket is ever late
    additions = 0  # gradients that backward passes outside of run.backward() have added so far

    def __init__(self, comm: Comm, buckets: Sequence[Bucket], workers: Workers) -> None:
        """The last of `buckets` has room for the trailer."""
        self._comm, self.buckets = comm, buckets
        parameters = sum(len(bucket.parameters) for bucket in buckets)
        self.trailer = SumTrailer(workers, parameters)
        self._all = np.ones(parameters, dtype=np.bool_)
        self.weight = self._share = 0.0
        self._measure = False
        self._weighted_sq = 0.0
        self._next = 0  # bucket to send; all workers send in one order, because a ring matches buffers by order
        self._open = False
        for later, bucket in enumerate(buckets, 1):  # votes travel first, then what the next forward pass needs first
            comm.declare(bucket.name, bucket.rounded, priority=len(buckets) - later)

    def set_wire(self, wire: str) -> None:
        """From the next sum on gradients travel by this wire. At the same place on all workers."""
        for bucket in self.buckets:
            if bucket.rounded:
                self._comm.set_wire(bucket.name, wire)

    @property
    def bytes_per_iteration(self) -> int:
        """Bytes this worker pushes per sum (it pulls as many)."""
        return sum(bucket.size_bytes for bucket in self.buckets)

    def begin(self, weight: float, measure_norm: bool, share: float | None = None) -> None:
        """Open a sum in which this worker has `weight`; until `send_rest`, backward fills the buckets.

        `share`: the weight of its running statistics, if that is another one.
        """
        self.weight, self._measure, self._weighted_sq = weight, measure_norm, 0.0
        self._share = weight if share is None else share
        for bucket in self.buckets:
            bucket.open(weight, self._share > 0)
            bucket.handle = None
        self._open, self._next = True, 0

    def send_full(self) -> None:
        """Send the full buckets, in order, up to the first that is not full. Never sends the last bucket."""
        while self._next < len(self.buckets) - 1 and self.buckets[self._next].is_full():
            self._send_next()

    def _send_next(self) -> None:
        bucket = self.buckets[self._next]
        self._add_square(bucket)
        bucket.handle = self._push(bucket)
        self._next += 1

    def _push(self, bucket: Bucket, begin: int = 0) -> int:
        """Start the sum of a bucket, in which values before `begin` have no part; returns its handle."""
        if bucket.own is bucket.buffer:
            return self._comm.push_pull(bucket.name, bucket.buffer, begin)
        return self._comm.push_pull_into(bucket.name, bucket.own, bucket.buffer, begin)

    def _add_square(self, bucket: Bucket) -> None:
        if self._measure and bucket.parameters:
            self._weighted_sq += bucket.squared(own=True)

    def send_rest(self, contribute: Callable[[float], Sequence[Contribution]]) -> None:
        """Send all other buckets, and then the last one with the trailer.

        `contribute` gets the squared norm of this process's mean gradient (NaN if not measured or if it has no
        samples), and returns what goes into the trailer, for each of its workers.
        """
        self._open = False
        *others, last = self.buckets
        for bucket in others[self._next :]:
            bucket.fill_gaps()
            self._send_next()
        last.fill_gaps()
        self._add_square(last)
        grad_sq = self._weighted_sq / self.weight**2 if self._measure and self.weight else float("nan")
        last.write_trailer(self.trailer.written(contribute(grad_sq), self._with_reached(self._present())))
        last.handle = self._push(last)

    def _present(self) -> NDArray[np.bool_]:
        """Of which parameters this worker has a gradient: the same array each time it has all."""
        if not any(bucket.lacking for bucket in self.buckets):
            return self._all
        present, begin = self._all.copy(), 0
        for bucket in self.buckets:
            present[[begin + number for number in bucket.lacking]] = False
            begin += len(bucket.parameters)
        return present

    def _with_reached(self, present: NDArray[np.bool_]) -> Present:
        """The same, with REACHED added where hooks of the script wait for the sum."""
        return present

    def after_sum(self) -> None:  # frameworks without such hooks do nothing
        """The iteration has had its sum: hooks of the script on gradients may see it."""

    def may_be_late(self) -> bool:
        """Whether nobody can take gradients whose sums are under way for those of the model."""
        return False

    def receive(self, on_slow: Callable[[float], None], trailer_alone: bool = False) -> GlobalView:
        """Wait for all sums; the gradients of the model are not touched yet.

        Calls `on_slow(waited_s)` about once a second while waiting; what it raises ends the wait.

        `trailer_alone`: only for the last bucket. The other ones are late then.
        """
        awaited = self.buckets
        if trailer_alone and self.late is not None:
            *late, last = self.buckets
            awaited = [last]
            self.late.begin(late[::-1] if self._comm.first_needed_first else late)
        self._wait([bucket.handle for bucket in awaited], on_slow)
        return self.trailer.read(self.buckets[-1].read_trailer())

    def late_buckets(self) -> list[Bucket]:
        """In the order in which their sums are expected."""
        return list(self.late.due) if self.late is not None else []

    def arrive(self, bucket: Bucket, on_slow: Callable[[float], None]) -> None:
        """Wait for the sum of a late bucket, and do with it what `deliver` has done with the others."""
        assert self.late is not None
        self.late.arrive(bucket, lambda: self._wait([bucket.handle], on_slow))

    def _wait(self, handles: Sequence[int | None], on_slow: Callable[[float], None]) -> None:
        began_s = time.monotonic()
        for handle in handles:
            assert handle is not None
            while not self._comm.wait(handle, WAIT_SLICE_S):
                on_slow(time.monotonic() - began_s)

    def deliver(self, factor: float = 1.0, statistics_factor: float = 1.0) -> None:
        """Make the sums that were received, times `factor`, the gradients of the model: sum(b_i g_i) / B.

        The summed running statistics, times `statistics_factor`, become those of the model; 0: it keeps its own.
        """
        of_any = None if all(bucket.in_place for bucket in self.buckets) else self.trailer.has_gradient()
        if statistics_factor != 1.0:
            self.buckets[-1].scale_statistics(statistics_factor)
        begin, late = 0, {} if self.late is None else self.late.due
        for bucket in self.buckets:
            end = begin + len(bucket.parameters)
            arrived = partial(bucket.arrived, factor, None if of_any is None else of_any[begin:end])
            begin = end
            if bucket in late:
                late[bucket] = arrived
            else:
                arrived()

    def announce(self, mine: Contribution, on_slow: Callable[[float], None]) -> GlobalView:
        """A sum of the trailer alone: gradients count as zeros, and those of the model stay as they are.

        It uses the same keys in the same order, so that it meets whatever sum the other workers are in.
        """
        self.buckets[-1].write_trailer(self.trailer.written((mine,), np.zeros_like(self._all)))
        self._wait([self._push(each, each.trailer_begin) for each in self.buckets], on_slow)
        return self.trailer.read_announcement(self.buckets[-1].read_trailer())

    def is_finite(self) -> bool:
        """Whether the sums that were received are finite: the same on all workers."""
        return all(bucket.is_finite() for bucket in self.buckets if bucket.parameters)

    def clear(self) -> None:
        """After `deliver`: the gradients of the model are zeros."""
        for bucket in self.buckets:
            if bucket.parameters:
                bucket.clear()

    def squared_norm(self) -> float:
        """|g|^2 of the global gradient, after `deliver`."""
        return sum(bucket.squared() for bucket in self.buckets if bucket.parameters)

    @property
    def has_local(self) -> bool:
        """Whether a backward outside run.backward() has added to gradients since the last sum."""
        return False

    def carry(self, before: float, weight: float) -> None:
        """What such a backward has added is of batches with weight `before`; the next one has `weight`."""

    def take_over(self, before: GradientExchange) -> list[str]:
        """Replace `before`, which has laid other parameters out: gradients that are in no sum yet are kept.

        Returns the names of parameters that have such gradients but are trained no more.
        """
        self.trailer.leader, self.trailer.present = before.trailer.leader, before.trailer.present
        before.close()
        return []

    def close(self) -> None:
        """Leave the model alone from now on."""
        for bucket in self.buckets:
            if bucket.memory is not None:
                self._comm.release(bucket.memory)
