"""Batches of one process. From a data set: samples that the sampler names, loaded by the data source, some ahead."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.errors import TrainingError
from dynamix_ps.messages import Plan
from worker_hooks.exchange.agreement import name_workers
from worker_hooks.loading.data_source import DataSource
from worker_hooks.loading.global_generators import derived_seed
from worker_hooks.sampling.sampler import Cursor, GlobalSampler, Range, Step
from worker_hooks.saved.checkpoint import Position, ShardsLeft


@dataclass(frozen=True, slots=True)
class Batch:
    """The data of one process for one iteration: of its worker, or of all its workers."""

    iteration: int
    plan: Plan
    step: Step
    samples: int
    size: int  # of these samples, in the unit of the plan
    data: Any

    @property
    def is_short(self) -> bool:
        """Whether a worker has less than half of its planned samples, such as at the end of a pass over shards.

        The last two batches of a pass over a data set have half or more. Sizes in tokens are never exact.
        """
        if self.step.sizes == self.plan.batch_sizes:
            return False
        sizes = zip(self.step.sizes, self.plan.batch_sizes, strict=True)
        return self.step.tokens is None and any(2 * used + 1 < planned for used, planned in sizes)


class StreamWorker(NamedTuple):
    """The worker that reads a stream.

    Attributes:
        smallest: samples that a worker gets at least if it gets any.
        plan_at: the plan of an iteration.
        ask_all: makes all workers report, by a sum that calls `report` and `told` of their batches.
    """

    rank: int
    workers: int
    smallest: int
    plan_at: Callable[[int], Plan]
    ask_all: Callable[[], None]


StreamReport = tuple[float, float, float, float]  # what a stream tells of one worker in every sum
NOTHING_READ: StreamReport = (0.0, 0.0, 0.0, 0.0)


def limit_reached(place: Cursor, number: int, last_epoch: int | None, last_iteration: int | None) -> bool:
    """Whether iteration `number` at `place` is beyond one of the limits (exclusive)."""
    return (last_epoch is not None and place.complete_epochs >= last_epoch) or (
        last_iteration is not None and number >= last_iteration
    )


class Batches(ABC):
    """What a training knows of its data.

    Attributes:
        seed: of the order of the samples.
        length: samples in one pass; for a stream those of the pass before, 0 while that is not known.
        pass_code: of the order in the pass of the batch at hand.
    """

    seed: int
    length: int
    pass_code = 0

    @abstractmethod
    def run(
        self, cursor: Cursor, iteration: int, last_epoch: int | None, last_iteration: int | None
    ) -> Iterator[Batch]:
        """Batches from `cursor` on, numbered from `iteration`, until one of the limits (exclusive) is reached."""

    def passes(self, cursor: Cursor) -> float:
        """Passes over the data up to `cursor`, the part of the last one too."""
        return cursor.epoch + ((cursor.position - cursor.owed_samples) / self.length if self.length else 0.0)

    def batches_per_pass(self, sizes: Sequence[int]) -> int:
        """About how many iterations a pass has under the planned `sizes`; 0 while that is not known."""
        return -(-self.length // sum(sizes))

    def samples_before(self, cursor: Cursor) -> int:
        """Samples of all workers up to `cursor`."""
        return cursor.epoch * self.length + cursor.position - cursor.owed_samples

    def report(self, used: bool) -> StreamReport:
        """What goes into the trailer of a sum. `used`: the batch at hand is part of it."""
        return NOTHING_READ

    def told(self, reports: Sequence[StreamReport], present: Collection[int]) -> None:  # noqa: B027  # most need none
        """The reports of all workers are there, but for those that are not `present`: these are lost."""

    def missed(self, step: Step, ranks: Collection[int], iteration: int) -> None:
        """The parts of the workers `ranks` in `step` are in no sum: their samples come again from `iteration` on, on
        all workers. None may have prepared a batch of that iteration yet.

        Raises TrainingError, on all workers, where samples cannot come again.
        """
        raise TrainingError(
            f"{name_workers(sorted(ranks))} was lost with samples of a stream, which have no numbers, so they cannot "
            "come again; resume from a checkpoint, or pass a data set with len(d) and d[i]"
        )

    def packed(self) -> list[Any]:
        """What is owed later, because batches before it were prepared: in JSON's types, for a worker that enters.

        Raises TrainingError where no worker can enter.
        """
        raise TrainingError("a worker enters a training over a stream, whose samples have no numbers")

    def take_over(self, packed: Iterable[Any]) -> None:  # noqa: B027  # most cannot
        """Go on from what `packed` returned on another worker, in the first loop."""

    def resumable(self, cursor: Cursor, iteration: int) -> tuple[Cursor, ShardsLeft | None]:
        """Where a resume begins if training is at `cursor` and `iteration` is next, and what is left there of the
        shards of a stream."""
        return cursor, None

    @abstractmethod
    def leave_passes(self, cursor: Cursor) -> None:
        """The next loop begins at `cursor`, the beginning of a pass: nothing of the passes before it comes again."""

    def close(self) -> None:  # noqa: B027  # most have nothing to end
        """End what reads ahead."""


@runtime_checkable
class Stream(Protocol):
    """A data source whose samples come one after the other. Its batches know how to read ahead, so its `depth` is 0."""

    def batches(self, start: Position, me: StreamWorker) -> Batches:
        """The batches of this worker from `start` on.

        Raises TrainingError if `start` is no place in this stream.
        """
        ...


class _Missed(NamedTuple):
    """Samples that are owed: from which iteration on, and where the batch began that was to have them."""

    first: int
    ranges: tuple[Range, ...]
    batch: Cursor | None = None


class BatchStream(Batches):
    """Batches of one process, some of them prepared ahead.

    The sizes of a batch are fixed when its preparation starts, some iterations before its use. A new
    plan takes effect with this lag, or with that of the worker that prepares the most.
    """

    def __init__(
        self,
        source: DataSource,
        load: Callable[[Iterator[NDArray[np.int64]], int], Generator[Any, None, None]],
        sampler: GlobalSampler,
        here: range,
        plan_at: Callable[[int], Plan],
    ) -> None:
        """`load`: of `source`, or of another source of the same samples. `here`: the workers of this process."""
        self._source, self._load = source, load
        self._sampler = sampler
        self._here = here
        self._plan_at = plan_at
        self._samples = source.samples_per_pass(1)
        self.length, self.seed = sampler.length, sampler.seed
        self._missed: list[_Missed] = []
        self._taken_over = False  # from workers that have prepared batches

    def batches_per_pass(self, sizes: Sequence[int]) -> int:
        return self._sampler.batches_per_pass(sizes)

    def run(
        self, cursor: Cursor, iteration: int, last_epoch: int | None, last_iteration: int | None
    ) -> Iterator[Batch]:
        pending = self._pending(cursor, iteration)
        if not self._taken_over:  # nothing is prepared, on any worker
            self._missed = [_Missed(iteration, pending)]  # until a batch is used that comes after them
        self._taken_over = False
        self._source.forget(cursor.owing(pending).complete_epochs)
        planned: deque[tuple[int, Plan, Step, int, int]] = deque()  # batches without their data
        refused: list[TrainingError] = []  # an order that cannot be, found while batches before it are still to come

        def numbers() -> Iterator[NDArray[np.int64]]:
            place, number = cursor, iteration
            while True:
                if self._missed:
                    place = place.owing(chain.from_iterable(o.ranges for o in self._missed if o.first == number))
                if limit_reached(place, number, last_epoch, last_iteration):
                    return
                if not place.is_inside and (found := self._source.samples_per_pass(1)) != self._samples:
                    refused.append(_other_length(found, self._samples, place.epoch))
                    return
                plan = self._plan_at(number)
                step = self._sampler.plan_step(place, plan.batch_sizes)
                try:
                    mine = self._sampler.indices(step, self._here.start, len(self._here))
                except TrainingError as error:
                    refused.append(error)
                    return
                size = sum(step.spent[self._here.start : self._here.stop])
                planned.append((number, plan, step, len(mine), size))
                yield mine
                place, number = step.next, number + 1

        with closing(self._load(numbers(), derived_seed(self.seed, self._here.start, iteration))) as loaded:
            for data in loaded:
                batch = Batch(*planned.popleft(), data)
                self.pass_code = self._source.code_of_pass(self.seed, batch.step.cursor.epoch)
                self._missed = [one for one in self._missed if one.first >= batch.iteration]
                self._source.forget(self.resumable(batch.step.cursor, batch.iteration + 1)[0].complete_epochs)
                yield batch
        if refused:
            raise refused[0]

    def missed(self, step: Step, ranks: Collection[int], iteration: int) -> None:
        ranges = tuple(one for rank in ranks for one in self._sampler.ranges(step, rank))
        self._missed.append(_Missed(iteration, ranges, step.cursor))

    def resumable(self, cursor: Cursor, iteration: int) -> tuple[Cursor, ShardsLeft | None]:
        return cursor.owing(self._pending(cursor, iteration)) if self._missed else cursor, None

    def _pending(self, cursor: Cursor, iteration: int) -> tuple[Range, ...]:
        """What is owed from `iteration` or a later one on. A batch at `cursor` is not done, so it owes nothing yet."""
        pending = (one for one in self._missed if one.first >= iteration and one.batch != cursor)
        return tuple(chain.from_iterable(one.ranges for one in pending))

    def leave_passes(self, cursor: Cursor) -> None:
        self._missed = []

    def packed(self) -> list[Any]:
        return [[one.first, [list(part) for part in one.ranges]] for one in self._missed]

    def take_over(self, packed: Iterable[Any]) -> None:
        self._missed = [_Missed(first, tuple(Range(*one) for one in ranges)) for first, ranges in packed]
        self._taken_over = True


def _other_length(found: int, before: int, epoch: int) -> TrainingError:
    return TrainingError(
        f"the data set has {found} samples at the beginning of epoch {epoch}, and had {before} in attach(); call "
        "run.close() and attach() again for a data set of another length"
    )
