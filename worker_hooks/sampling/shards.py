"""Which worker reads which shard next: all workers decide it alike, from what the trailer tells of each. Pure.

A pass is a list of pieces; a piece is a shard from some sample on. Nobody knows how long a shard is before it is read.
A worker that has read all its pieces says so in the trailer (`ReadingReport.wants`), and gets the next of the list.
Where several want, they get them in the order of ranks. So whoever reads fast takes more shards (invariant 3: still
every sample once). No message is needed, because every worker sees the same reports.

A batch may only take what its worker certainly has, so that all know its size before they compute. `is_short` says
that some worker does not have enough for the plan although there may be more: then all report again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from worker_hooks.sampling.shard_list import Piece


class ReadingReport(NamedTuple):
    """What a worker tells of its reading in every sum."""

    ready: int = 0  # samples that are read and in no batch yet
    wants: int = 0  # above 0: all its pieces are read, and so many more are of use
    done: int = 0  # of the pieces that it has got in this pass, those that are used up
    offset: int = 0  # in the piece after them, of the first sample that is not used


class ShardPass:
    """The state of one pass, the same on all workers: pieces that wait, pieces that each worker holds.

    see -> hand_out -> (is_short: see again) -> take -> see ...

    Args:
        smallest: samples of the smallest batch; 2 where the model has batch norm.
    """

    def __init__(self, pieces: Iterable[Piece], workers: int, smallest: int = 1) -> None:
        self._smallest = smallest
        self._waiting = deque(pieces)
        self._held: list[list[Piece]] = [[] for _ in range(workers)]  # in the order of reading
        self._done = [0] * workers  # pieces that were used up
        self._ready = [0] * workers
        self._wants = [1] * workers  # until it gets a piece
        self._empty: set[int] = set()  # slots without a worker, as of the last reports
        self._is_fresh = True  # no batch was taken since the last reports

    def see(self, reports: Sequence[ReadingReport | None]) -> None:
        """Take in the reports of all workers. All pieces that they have got are known to them.

        Without a report a slot is empty: what its worker had not used up when it reported last is for others.
        """
        self._empty = {rank for rank, report in enumerate(reports) if report is None}
        for rank, report in enumerate(reports):
            held = self._held[rank]
            if report is None:
                self._waiting.extendleft(reversed(held))
                held.clear()
                self._done[rank], self._ready[rank], self._wants[rank] = 0, 0, 1
                continue
            del held[: report.done - self._done[rank]]
            if held:
                held[0] = held[0]._replace(offset=report.offset)
            self._done[rank], self._ready[rank], self._wants[rank] = report.done, report.ready, report.wants
        self._is_fresh = True

    def left(self) -> list[Piece]:
        """What was not used up when the last reports were made: all that a resume needs."""
        return [piece for held in self._held for piece in held] + list(self._waiting)

    @property
    def waiting(self) -> int:
        """Pieces that nobody has begun."""
        return len(self._waiting)

    def idle(self, sizes: Sequence[int]) -> list[int]:
        """Workers that hold pieces and take no samples under these planned sizes."""
        return [rank for rank, held in enumerate(self._held) if held and not sizes[rank]]

    def give_up(self, rank: int) -> None:
        """The rest of this worker's pieces is for others. Only right after `see`."""
        assert self._is_fresh, "it is not known what is left of them"
        held = self._held[rank]
        self._waiting.extendleft(reversed(held))
        self._done[rank] += len(held)
        held.clear()
        self._ready[rank], self._wants[rank] = 0, 1

    def hand_out(self, sizes: Sequence[int]) -> list[list[Piece]]:
        """Give waiting pieces to workers that want some, one each in turn; returns what each has got.

        Workers whose planned size is 0 get none. Towards the end a slow worker gets none either, if the others will
        need less time for all that is left than it for one piece.
        """
        given: list[list[Piece]] = [[] for _ in self._held]
        asking = [rank for rank, size in enumerate(sizes) if size and self._wants[rank] and rank not in self._empty]
        while asking:
            for rank in asking:
                if self._is_of_use(rank, sizes):
                    given[rank].append(self._waiting.popleft())
            asking = [rank for rank in asking if len(given[rank]) < self._wants[rank] and self._is_of_use(rank, sizes)]
        for rank, pieces in enumerate(given):
            self._held[rank] += pieces
            if pieces:
                self._wants[rank] = 0
        return given

    def _is_of_use(self, rank: int, sizes: Sequence[int]) -> bool:
        """Whether the pass ends sooner if this worker takes the next waiting piece.

        In an iteration a worker takes as many samples as its size. All pieces count as equally long, and half a piece
        as left with each of the others. The fastest worker always takes one.
        """
        others = [size for other, size in enumerate(sizes) if size and other != rank]
        if not self._waiting or not others:
            return bool(self._waiting)
        without = max(1.5 / max(sizes), (len(self._waiting) + len(others) / 2) / sum(others))
        return 1 / sizes[rank] <= without

    def is_short(self, sizes: Sequence[int]) -> bool:
        """Whether the workers must report again before a batch of these planned sizes can be taken."""
        if self.idle(sizes):
            return True
        enough = (self._ready[rank] >= self.needed(size) for rank, size in enumerate(sizes))
        return not all(has or self._wants[rank] for rank, has in enumerate(enough))

    def needed(self, size: int) -> int:
        """Samples that a worker must have for a batch of this planned size: no single one may be left then."""
        return max(size, self._smallest) + self._smallest if size else 0

    def take(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The sizes really used under the planned ones, unless `is_short`. All zeros: the pass is over.

        A worker takes as planned as long as there may be more for it. Once it is known what all have left, every worker
        spreads its rest evenly over as few iterations as the longest rest needs.
        """
        sizes = [max(size, self._smallest) if size else 0 for size in sizes]
        iterations = 0
        if not self._waiting and all(wants or not size for wants, size in zip(self._wants, sizes, strict=True)):
            iterations = max(-(-ready // size) for ready, size in zip(self._ready, sizes, strict=True) if size)
        used = tuple(
            _not_single(-(-ready // iterations) if iterations else min(ready, size), ready, self._smallest)
            for ready, size in zip(self._ready, sizes, strict=True)
        )
        self._ready = [ready - taken for ready, taken in zip(self._ready, used, strict=True)]
        self._is_fresh = self._is_fresh and not any(used)
        return used

    def undo(self, used: Sequence[int]) -> None:
        """The batch of these sizes was not used: its samples come again."""
        self._ready = [ready + taken for ready, taken in zip(self._ready, used, strict=True)]

    @property
    def is_over(self) -> bool:
        """Whether every sample is taken. Known as soon as the last batch is."""
        return not self._waiting and not any(self._ready) and all(self._wants)


def _not_single(taken: int, ready: int, smallest: int) -> int:
    """A size near `taken` that is no single sample and leaves none, where batch norm needs two."""
    if smallest == 1 or taken == 0:
        return taken
    taken = min(max(taken, smallest), ready)
    if ready - taken == 1:
        return taken - 1 if taken > smallest else ready
    return taken
