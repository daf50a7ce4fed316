"""Which samples each worker takes where sizes are budgets of tokens: every sample once per epoch (invariant 3).

An iteration takes the next samples of the epoch's order: worker 0 until its budget is full, then worker 1, and so on. A
batch costs the tokens of its samples or, where it is padded, as many times the longest of them. No batch costs more
than its budget, but for samples that no budget can hold. All workers know all lengths, so each computes the same split.
Pure: no clock, no I/O, no global random state.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, starmap

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import apportion
from worker_hooks.sampling.sampler import Cursor, GlobalSampler, Order, Range, Step


class TokenSampler(GlobalSampler):
    """Walks `length` samples per pass in an order that only `seed` and the epoch decide.

    Args:
        lengths: tokens of every sample of the data set by its number, int64; a sample without tokens counts as one.
        padded: whether a batch costs its samples times the longest of them.
    """

    def __init__(
        self,
        lengths: NDArray[np.int64],
        length: int,
        seed: int,
        smallest: int = 1,
        order: Order | None = None,
        padded: bool = False,
    ) -> None:
        super().__init__(length, seed, smallest, order)
        self._lengths = np.maximum(lengths, 1)
        self._longest = int(self._lengths.max())
        self._padded = padded
        self._coming: tuple[int, tuple[Range, ...]] | None = None
        self._tokens: NDArray[np.int64] = np.empty(0, dtype=np.int64)  # of each sample that comes, in its order
        self._before: NDArray[np.int64] = np.empty(0, dtype=np.int64)  # tokens before each of them

    def plan_step(self, cursor: Cursor, sizes: Sequence[int]) -> Step:
        """The iteration at `cursor` under the planned `sizes`, in tokens.

        Towards the end of an epoch iterations take half of what is left, as long as two are needed for it.
        """
        total = sum(sizes)
        if total < 1:
            raise ValueError(f"a plan needs at least one token per iteration, got {tuple(sizes)}")
        begin = self._begin(cursor)
        left = int(self._before[-1] - self._before[begin])
        surely = max(total - len(sizes) * (self._longest - 1), (total + 1) // 2)  # fits, in whatever order samples come
        budgets = sizes
        if surely < left < 2 * surely:
            budgets = apportion((left + 1) // 2, sizes, high=sizes)
        taken = self._filled(begin, budgets)
        ends = np.cumsum([begin, *taken]).tolist()
        tokens = tuple(starmap(self._cost, pairwise(ends)))
        return Step(cursor, tuple(taken), cursor.after(sum(taken), self.length), tokens)

    def batches_per_pass(self, sizes: Sequence[int]) -> int:
        self._begin(Cursor())
        return -(-int(self._before[-1]) // sum(sizes))

    def _filled(self, begin: int, budgets: Sequence[int]) -> list[int]:
        """Samples of every worker from place `begin` on. At least one worker has some."""
        taken: list[int] = []
        place = begin
        for budget in budgets:
            fitting = self._fitting(place, budget)
            taken.append(fitting if fitting >= self._smallest else 0)
            place += taken[-1]
        if place == begin:  # no budget holds the next samples
            largest = max(range(len(budgets)), key=budgets.__getitem__)
            taken[largest] = min(self._smallest, len(self._tokens) - begin)
        return taken

    def _fitting(self, begin: int, budget: int) -> int:
        """How many samples from place `begin` on cost no more than `budget`."""
        if not self._padded:
            return int(np.searchsorted(self._before, self._before[begin] + budget, "right")) - 1 - begin
        longest = np.maximum.accumulate(self._tokens[begin : begin + budget])
        costs = longest * np.arange(1, len(longest) + 1)
        return int(np.searchsorted(costs, budget, "right"))

    def _cost(self, begin: int, end: int) -> int:
        if self._padded:
            return (end - begin) * int(self._tokens[begin:end].max(initial=0))
        return int(self._before[end] - self._before[begin])

    def _begin(self, cursor: Cursor) -> int:
        """Look up the tokens of what comes; returns the place of the next sample among them."""
        begin = 0 if cursor.owed else cursor.position
        ranges = cursor.coming(self.length) if cursor.owed else (Range(cursor.epoch, 0, self.length),)
        if self._coming != (self.seed, ranges):
            self._tokens = self._lengths[self._numbers(ranges)]
            self._before = np.concatenate([[0], np.cumsum(self._tokens)])
            self._coming = self.seed, ranges
        return begin
