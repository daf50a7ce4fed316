"""Batches of one worker out of shards that all workers share: shards.py decides who reads which, shard_reader.py reads.

The samples of the coming batch are read before the present one is handed out, so that the trailer of the present sum
tells all workers how large the coming batches can be. Where that is not enough, such as at the beginning of a
pass, the workers report in a sum of their trailers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from dynamix_ps.errors import TrainingError
from worker_hooks.loading.batches import Batch, Batches, StreamReport, StreamWorker, limit_reached
from worker_hooks.loading.global_generators import derived_seed
from worker_hooks.loading.shard_reader import Place, ShardReader
from worker_hooks.sampling.sampler import Cursor, Step
from worker_hooks.sampling.shard_list import Piece, Shards
from worker_hooks.sampling.shards import ReadingReport, ShardPass
from worker_hooks.saved.checkpoint import Position, ShardsLeft


class ShardStream(Batches):
    """The stream of one training on one worker.

    Args:
        collate: makes a batch of the list of its samples.
    """

    def __init__(self, shards: Shards, collate: Callable[[list[Any]], Any], start: Position, me: StreamWorker) -> None:
        """Raises TrainingError if `start` is in the middle of a pass over something else."""
        self._shards, self._collate = shards, collate
        self._me, self._rank = me, me.rank
        self.seed, self.length = start.seed, start.epoch_samples
        self._without_samples: Any = None  # a batch for a share of 0 samples
        self._last: Step | None = None  # that was handed out
        self._taken: list[tuple[Any, Place]] = []  # its samples
        self._is_used = True  # it is in a sum, or the script has left it out
        self._reader = ShardReader(self._open, shards.name_of, shards.close)
        self._begin_pass(start.cursor, _pieces_of(start, shards) if start.cursor.is_inside else None)

    def _open(self, number: int) -> Iterator[Any]:
        return self._shards.open(number, derived_seed(self.seed, self._epoch, number))

    def _begin_pass(self, cursor: Cursor, pieces: Sequence[Piece] | None = None) -> None:
        """`pieces`: what is left of the pass; without them, all shards, in an order that seed and epoch decide."""
        numbers = np.arange(len(self._shards))
        if self._shards.shuffle:
            numbers = np.random.default_rng((self.seed, cursor.epoch)).permutation(len(self._shards))
        self._reader.begin_pass()
        all_pieces = list(map(Piece, numbers.tolist())) if pieces is None else pieces
        self._pass = ShardPass(all_pieces, self._me.workers, self._me.smallest)
        self._epoch = cursor.epoch
        self._place = cursor  # after the last batch that is used
        self._reported = cursor  # where this was at the last reports
        self._last, self._taken = None, []

    def run(
        self, cursor: Cursor, iteration: int, last_epoch: int | None, last_iteration: int | None
    ) -> Iterator[Batch]:
        self._take_back(cursor)
        place, number = cursor, iteration
        while not limit_reached(place, number, last_epoch, last_iteration):
            if place.epoch != self._epoch:
                self._begin_pass(place)
            plan = self._me.plan_at(number)
            step = self._plan_step(place, plan.batch_sizes)
            taken = self._reader.take(step.sizes[self._rank])
            self._reader.wait_for(self._pass.needed(plan.batch_sizes[self._rank]))
            self._last, self._taken, self._is_used = step, taken, False
            yield Batch(number, plan, step, len(taken), len(taken), self._batch_of([sample for sample, _ in taken]))
            self._use_batch()
            place, number = step.next, number + 1

    def _use_batch(self) -> None:
        """The batch that was handed out does not come again."""
        assert self._last is not None, "no batch was handed out"
        self._is_used, self._place = True, self._last.next

    def _take_back(self, cursor: Cursor) -> None:
        """The script has left its loop before it used the last batch: the samples come again."""
        if self._last is not None and self._last.cursor == cursor:
            self._reader.put_back(self._taken)
            self._pass.undo(self._last.sizes)
        self._last, self._taken = None, []
        self._place = cursor

    def _plan_step(self, place: Cursor, sizes: Sequence[int]) -> Step:
        """The iteration at `place` under the planned `sizes`. Collective where not all know enough."""
        needed = self._pass.needed(sizes[self._rank])
        self._reader.read_ahead(2 * needed)
        self._hand_out(sizes)
        while self._pass.is_short(sizes):
            self._reader.wait_for(needed)
            self._me.ask_all()
            for rank in self._pass.idle(sizes):
                self._pass.give_up(rank)
                if rank == self._rank:
                    self._reader.give_up()
            self._hand_out(sizes)
        used = self._pass.take(sizes)
        if not any(used):
            raise TrainingError(f"no shard of {len(self._shards)} has a sample; check what open_shard() returns")
        position = place.position + sum(used)
        if self._pass.is_over:
            self.length = position
            return Step(place, used, Cursor(place.epoch + 1))
        if self.length:
            self.length = max(self.length, position + 1)  # this pass is longer than the one before
        return Step(place, used, Cursor(place.epoch, position))

    def _hand_out(self, sizes: Sequence[int]) -> None:
        self._reader.give(self._pass.hand_out(sizes)[self._rank])

    def _batch_of(self, samples: list[Any]) -> Any:
        if samples:
            return self._collate(samples)
        if self._without_samples is None:
            self._without_samples = self._collate(self._shards.first_samples())
        return self._without_samples

    def passes(self, cursor: Cursor) -> float:
        """As long as no pass is complete, the part of one is that of the shards that are begun."""
        if self.length or not cursor.is_inside:
            return super().passes(cursor)
        return cursor.epoch + 1 - self._pass.waiting / len(self._shards)

    # -- what the sums tell -------------------------------------------------------------------------------------------

    def report(self, used: bool) -> StreamReport:
        if used:
            self._use_batch()
        report = self._reader.report()
        if self._taken and not self._is_used:
            done, offset = self._taken[0][1]
            report = report._replace(done=done, offset=offset)
        return report

    def told(self, reports: Sequence[StreamReport], present: Collection[int]) -> None:
        self._pass.see(
            [ReadingReport(*map(round, report)) if rank in present else None for rank, report in enumerate(reports)]
        )
        self._reported = self._place

    def resumable(self, cursor: Cursor, iteration: int) -> tuple[Cursor, ShardsLeft | None]:
        """As of the last sum: batches that the script left out after it come again."""
        left = self._pass.left() if self._reported.position else []
        return self._reported, ShardsLeft(len(self._shards), self._shards.code(), tuple(left))

    def leave_passes(self, cursor: Cursor) -> None:
        self._place = self._reported = cursor

    def close(self) -> None:
        self._reader.close()


def _pieces_of(start: Position, shards: Shards) -> tuple[Piece, ...]:
    """What is left of the pass that `start` is in."""
    if start.left is None:
        raise TrainingError(
            f"the checkpoint is at sample {start.cursor.position} of a pass over other data than shards; "
            "resume with the same data, or from a checkpoint of the end of an epoch"
        )
    saved = start.left.shards, start.left.code
    if saved != (len(shards), shards.code()):
        change = f"{saved[0]} shards, there are {len(shards)} now" if saved[0] != len(shards) else "other shards"
        raise TrainingError(
            f"the checkpoint is in the middle of a pass over {change}; resume with the same list of shards and the "
            "same num_workers, or from a checkpoint of the end of an epoch"
        )
    return start.left.pieces
