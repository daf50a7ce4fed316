"""Which samples each worker takes: every sample once per epoch, whatever the batch sizes do (invariant 3).

There is one order per epoch, the same on all workers: a permutation that comes from the seed, or what the sampler of
the script's loader draws. An iteration takes the next B samples of it; worker i takes the slice after those of the
workers before it. `Cursor` is all that a resume needs. Pure: no clock, no I/O, no global random state.

Samples that were handed out and came into no sum, because their worker was lost, are *owed*: the cursor keeps their
ranges, and the next iterations take them first. An epoch is complete when it owes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import apportion

Order = Callable[[int, int], NDArray[np.int64]]  # (seed, epoch) -> sample numbers of this pass


class Range(NamedTuple):
    """The samples from place `begin` up to `end` in the order of an epoch."""

    epoch: int
    begin: int
    end: int

    @property
    def samples(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the training data: `position` samples of epoch `epoch` are done, and all of the epochs before it.

    `owed` are exceptions: samples before this place that are not done. They are in order, and none of them touch.
    """

    epoch: int = 0
    position: int = 0
    owed: tuple[Range, ...] = ()

    @property
    def complete_epochs(self) -> int:
        """Epochs that owe nothing, and all before them neither."""
        return min(self.epoch, self.owed[0].epoch) if self.owed else self.epoch

    @property
    def is_inside(self) -> bool:
        """Whether an epoch has begun and is not complete."""
        return self.position > 0 or bool(self.owed)

    @property
    def next_pass(self) -> int:
        """The first epoch that has not begun."""
        return self.epoch + (self.position > 0)

    @property
    def owed_samples(self) -> int:
        """How many samples are owed."""
        return sum(one.samples for one in self.owed)

    def coming(self, length: int) -> tuple[Range, ...]:
        """What the next iterations take, in this order, of an epoch of `length` samples: first what is owed.

        An earlier epoch that owes samples is alone in it, because no iteration has samples of two epochs.
        """
        oldest = self.complete_epochs
        if oldest < self.epoch:
            return tuple(one for one in self.owed if one.epoch == oldest)
        return *self.owed, Range(self.epoch, self.position, length)

    def after(self, samples: int, length: int) -> Cursor:
        """The place behind the next `samples` of `coming(length)`."""
        coming = self.coming(length)
        rest = cut(coming, samples)
        if coming[0].epoch < self.epoch:
            return Cursor(self.epoch, self.position, (*rest, *self.owed[len(coming) :]))
        return Cursor(self.epoch, rest[-1].begin, rest[:-1]) if rest else Cursor(self.epoch + 1)

    def owing(self, ranges: Iterable[Range]) -> Cursor:
        """The same place, which owes the samples of `ranges` too.

        Raises ValueError for samples that are owed already or that this place is not behind.
        """
        merged: list[Range] = []
        for one in sorted((*self.owed, *(one for one in ranges if one.samples))):
            before = merged[-1] if merged and merged[-1].epoch == one.epoch else None
            if before is not None and one.begin < before.end:
                raise ValueError(f"samples from {one.begin} on of epoch {one.epoch} are owed already")
            if one[::2] > (self.epoch, self.position):
                raise ValueError(f"samples up to {one.end} of epoch {one.epoch} are not behind {self}")
            if before is not None and one.begin == before.end:
                merged[-1] = before._replace(end=one.end)
            else:
                merged.append(one)
        return Cursor(self.epoch, self.position, tuple(merged))


def cut(ranges: Sequence[Range], begin: int, samples: int | None = None) -> tuple[Range, ...]:
    """Of the samples in `ranges`, one after the other: `samples` of them from number `begin` on; None: all of these."""
    end = sum(one.samples for one in ranges) if samples is None else begin + samples
    found, place = [], 0
    for one in ranges:
        low, high = max(begin - place, 0), min(end - place, one.samples)
        if low < high:
            found.append(Range(one.epoch, one.begin + low, one.begin + high))
        place += one.samples
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Step:
    """The samples of one iteration: how many each worker really takes, and where the next iteration begins."""

    cursor: Cursor
    sizes: tuple[int, ...]
    next: Cursor
    tokens: tuple[int, ...] | None = None  # of each worker, where the plan's sizes are in tokens

    @property
    def spent(self) -> tuple[int, ...]:
        """What each worker takes, in the unit of the plan's sizes."""
        return self.sizes if self.tokens is None else self.tokens


class GlobalSampler:
    """Walks `length` samples per pass in an order that only `seed` and the epoch decide.

    Args:
        smallest: samples that a worker gets at least if it gets any, 1 or 2 (2 where the model has batch norm).
        order: of each pass; it may be longer than `length`. Without it, a permutation.
    """

    def __init__(self, length: int, seed: int, smallest: int = 1, order: Order | None = None) -> None:
        if length < 1:
            raise ValueError(f"a data set needs at least one sample, got {length}")
        self._smallest = smallest
        self.length = length
        self.seed = seed
        self._order = order or Permutation(length)

    def plan_step(self, cursor: Cursor, sizes: Sequence[int]) -> Step:
        """The iteration at `cursor` under the planned `sizes`.

        The last two iterations of an epoch share what is left, half and half: the gradient of a few samples is mostly
        noise, which momentum carries into the next steps (benchmarks/results/epoch-end.md). Both are split in
        proportion to the plan, so that no worker is slower than in other iterations. Every worker takes part, some
        perhaps with 0 samples.
        """
        total = sum(sizes)
        if total < 1:
            raise ValueError(f"a plan needs at least one sample per iteration, got {tuple(sizes)}")
        left = sum(one.samples for one in cursor.coming(self.length))
        taken = (left + 1) // 2 if total < left < 2 * total else min(left, total)
        if left - taken == 1 < self._smallest:
            taken += -1 if taken > 2 else 1  # or one sample is left for the next iteration
        used = tuple(sizes) if taken == total else apportion(taken, sizes, high=sizes if taken < total else None)
        if self._smallest == 2 and 1 in used:
            used = _without_single_samples(used)
        return Step(cursor, used, cursor.after(sum(used), self.length))

    def batches_per_pass(self, sizes: Sequence[int]) -> int:
        """About how many iterations a pass has under the planned `sizes`."""
        return -(-self.length // sum(sizes))

    def ranges(self, step: Step, rank: int, count: int = 1) -> tuple[Range, ...]:
        """What `count` workers from `rank` on take in this iteration."""
        return cut(step.cursor.coming(self.length), sum(step.sizes[:rank]), sum(step.sizes[rank : rank + count]))

    def indices(self, step: Step, rank: int, count: int = 1) -> NDArray[np.int64]:
        """Their sample numbers, int64, possibly empty."""
        return self._numbers(self.ranges(step, rank, count))

    def _numbers(self, ranges: Iterable[Range]) -> NDArray[np.int64]:
        parts = [self._order(self.seed, one.epoch)[one.begin : one.end] for one in ranges]
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0, np.int64)])


class Permutation:
    """All numbers below `length`, in an order that (seed, epoch) decides."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._of = (-1, -1)
        self._numbers: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def __call__(self, seed: int, epoch: int) -> NDArray[np.int64]:
        if self._of != (seed, epoch):
            self._numbers = np.random.default_rng((seed, epoch)).permutation(self._length)
            self._of = seed, epoch
        return self._numbers


def _without_single_samples(sizes: Sequence[int]) -> tuple[int, ...]:
    """The same total without a size of 1: such a sample goes to the worker with the most (one sample alone stays)."""
    sizes = list(sizes)
    for rank in [rank for rank, size in enumerate(sizes) if size == 1]:
        largest = max((other for other in range(len(sizes)) if other != rank), key=sizes.__getitem__, default=rank)
        if sizes[rank] == 1 and sizes[largest]:
            sizes[rank], sizes[largest] = 0, sizes[largest] + 1
    return tuple(sizes)
