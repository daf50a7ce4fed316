"""Which samples each worker takes: every sample once per epoch, whatever the batch sizes do (invariant 3).

There is one order per epoch, the same on all workers: a permutation that comes from the seed, or what the sampler of
the script's loader draws. An iteration takes the next B samples of it; worker i takes the slice after those of the
workers before it. `Cursor` is all that a resume needs. Pure: no clock, no I/O, no global random state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import apportion

Order = Callable[[int, int], NDArray[np.int64]]  # (seed, epoch) -> sample numbers of this pass


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the training data: `position` samples of epoch `epoch` are done."""

    epoch: int = 0
    position: int = 0


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
        left = self.length - cursor.position
        taken = (left + 1) // 2 if total < left < 2 * total else min(left, total)
        if left - taken == 1 < self._smallest:
            taken += -1 if taken > 2 else 1  # or one sample is left for the next iteration
        used = tuple(sizes) if taken == total else apportion(taken, sizes, high=sizes if taken < total else None)
        if self._smallest == 2 and 1 in used:
            used = _without_single_samples(used)
        position = cursor.position + sum(used)
        after = Cursor(cursor.epoch + 1, 0) if position == self.length else Cursor(cursor.epoch, position)
        return Step(cursor, used, after)

    def batches_per_pass(self, sizes: Sequence[int]) -> int:
        """About how many iterations a pass has under the planned `sizes`."""
        return -(-self.length // sum(sizes))

    def indices(self, step: Step, rank: int, count: int = 1) -> NDArray[np.int64]:
        """Sample numbers of `count` workers from `rank` on in this iteration, int64, possibly empty."""
        start = step.cursor.position + sum(step.sizes[:rank])
        return self._order(self.seed, step.cursor.epoch)[start : start + sum(step.sizes[rank : rank + count])]


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
