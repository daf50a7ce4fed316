"""Batches of one worker out of a stream that every worker reads alike: each takes its part of every global batch.

It is as exact as a data set with sample numbers: the order is that of the stream, and (epoch, cursor) is all that a
resume needs, which reads on to the place. Every worker reads every sample, so it suits streams that are cheap to read.

Nothing makes a stream the same on two workers, so the trailer compares them: in every sum each worker tells what the
first sample of the global batch looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from dynamix_ps.errors import TrainingError
from worker_hooks.exchange.agreement import name_workers
from worker_hooks.loading.batches import NOTHING_READ, Batch, Batches, StreamReport, StreamWorker, limit_reached
from worker_hooks.loading.fingerprint import look_of
from worker_hooks.loading.shard_reader import Place, ShardReader
from worker_hooks.sampling.sampler import Cursor, GlobalSampler, Step
from worker_hooks.sampling.shard_list import Piece
from worker_hooks.saved.checkpoint import Position, ShardsLeft

ONE_SHARD = ShardsLeft(1, 0, ())  # what checkpoints say of a stream; the cursor is the place in it


class CommonStream(Batches):
    """The stream of one training on one worker.

    Args:
        open_pass: the samples of a pass, by its number.
        collate: makes a batch of the list of its samples.
        drop_last: whether what makes no whole global batch at the end of a pass is left out.
    """

    def __init__(
        self,
        open_pass: Callable[[int], Iterator[Any]],
        collate: Callable[[list[Any]], Any],
        start: Position,
        me: StreamWorker,
        drop_last: bool = False,
    ) -> None:
        """Raises TrainingError if `start` is in the middle of a pass over something else."""
        if start.cursor.is_inside and (start.left != ONE_SHARD or start.cursor.owed):
            raise TrainingError(
                f"the checkpoint is at sample {start.cursor.position} of a pass over other data than a stream; resume "
                "with the same data, or from a checkpoint of the end of an epoch"
            )
        self._collate = collate
        self._me, self._drop_last = me, drop_last
        self.seed, self.length = start.seed, start.epoch_samples
        self._without_samples: Any = None  # a batch for a share of 0 samples
        self._last: Step | None = None  # that was handed out
        self._taken: list[tuple[Any, Place]] = []  # samples of all workers in it
        self._look: StreamReport = NOTHING_READ
        self._epoch: int | None = None  # that is read; none: reading begins with the first loop
        self._reader = ShardReader(open_pass, lambda epoch: f"of epoch {epoch}")

    def _begin_pass(self, cursor: Cursor) -> None:
        self._reader.begin_pass()
        self._reader.give([Piece(cursor.epoch, cursor.position)])
        self._epoch = cursor.epoch
        self._last, self._taken = None, []

    def run(
        self, cursor: Cursor, iteration: int, last_epoch: int | None, last_iteration: int | None
    ) -> Iterator[Batch]:
        if self._last is not None and self._last.cursor == cursor:
            self._reader.put_back(self._taken)  # the script has left its loop before it used them
        self._last, self._taken = None, []
        place, number = cursor, iteration
        while not limit_reached(place, number, last_epoch, last_iteration):
            if place.epoch != self._epoch:
                self._begin_pass(place)
            plan = self._me.plan_at(number)
            step = self._plan_step(place, plan.batch_sizes)
            self._taken = self._reader.take(sum(step.sizes))
            self._last, self._look = step, look_of(self._taken[0][0])
            begin, size = sum(step.sizes[: self._me.rank]), step.sizes[self._me.rank]
            mine = [sample for sample, _ in self._taken[begin : begin + size]]
            yield Batch(number, plan, step, size, size, self._batch_of(mine))
            place, number = step.next, number + 1

    def _plan_step(self, place: Cursor, sizes: Sequence[int]) -> Step:
        """The iteration at `place`: as of a data set whose length is known as soon as its end is near."""
        total = sum(sizes)
        near = 2 * total + 2  # samples by which all later iterations are decided
        self._reader.read_ahead(2 * near)
        self._reader.wait_for(near)
        ready = self._reader.report().ready
        if not ready:
            raise TrainingError(f"the stream has no sample in epoch {place.epoch}; it must begin anew in every pass")
        if self._drop_last and ready < near:  # nothing comes after these
            if ready < total and not place.position:
                raise TrainingError(
                    f"the stream has {ready} samples in epoch {place.epoch}, fewer than one iteration takes ({total}), "
                    "and drop_last=True leaves them out; set smaller sizes, or leave drop_last out"
                )
            ready -= ready % total if ready >= total else 0
        end = place.position + ready
        step = GlobalSampler(end, self.seed, self._me.smallest).plan_step(place, sizes)
        if step.next.position == 0:
            self.length = end
        elif self.length:
            self.length = max(self.length, step.next.position + 1)  # this pass is longer than the one before
        return step

    def _batch_of(self, samples: list[Any]) -> Any:
        if samples:
            return self._collate(samples)
        if self._without_samples is None:
            self._without_samples = self._collate([sample for sample, _ in self._taken[:2]])
        return self._without_samples

    def report(self, used: bool) -> StreamReport:
        return self._look

    def told(self, reports: Sequence[StreamReport], present: Collection[int]) -> None:
        """Raises TrainingError, on all workers alike, if they read different streams."""
        tolerance = max(report[2] for report in reports)
        first = min(present)
        code, value, *_ = reports[first]
        odd = [rank for rank in present if reports[rank][0] != code or abs(reports[rank][1] - value) > tolerance]
        if odd:
            raise TrainingError(
                f"the stream of {name_workers(odd)} gives other samples than that of worker {first}; no step was made "
                "with them. Every worker must read the same samples in the same order, and the hook gives each its "
                "part: seed what is random in the stream alike, leave out what splits it between workers, or pass "
                "dynamix.shards(...), of which every worker reads some"
            )

    def leave_passes(self, cursor: Cursor) -> None:
        """`run` opens the stream anew for another pass."""

    def resumable(self, cursor: Cursor, iteration: int) -> tuple[Cursor, ShardsLeft | None]:
        return cursor, ONE_SHARD

    def close(self) -> None:
        self._reader.close()
