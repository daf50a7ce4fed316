"""Batches of one worker: the samples that the sampler names, loaded by the data source, some batches ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.errors import TrainingError
from dynamix_ps.messages import Plan
from worker_hooks.data_source import DataSource
from worker_hooks.global_generators import derived_seed
from worker_hooks.sampler import Cursor, GlobalSampler, Step


@dataclass(frozen=True, slots=True)
class Batch:
    """One worker's data for one iteration."""

    iteration: int
    plan: Plan
    step: Step
    samples: int
    size: int  # of these samples, in the unit of the plan
    data: Any


class BatchStream:
    """Batches of one worker, some of them prepared ahead.

    The sizes of a batch are fixed when its preparation starts, some iterations before its use. A new
    plan takes effect with this lag, or with that of the worker that prepares the most.
    """

    def __init__(
        self,
        source: DataSource,
        load: Callable[[Iterator[NDArray[np.int64]], int], Generator[Any, None, None]],
        sampler: GlobalSampler,
        rank: int,
        plan_at: Callable[[int], Plan],
    ) -> None:
        """`load`: of `source`, or of another source of the same samples."""
        self._source, self._load = source, load
        self._sampler = sampler
        self._rank = rank
        self._plan_at = plan_at
        self.pass_code = 0  # of the order in the pass of the batch at hand

    @property
    def length(self) -> int:
        """Samples in one epoch."""
        return self._sampler.length

    @property
    def seed(self) -> int:
        """Seed of the order of the samples."""
        return self._sampler.seed

    def run(
        self, cursor: Cursor, iteration: int, last_epoch: int | None, last_iteration: int | None
    ) -> Iterator[Batch]:
        """Batches from `cursor` on, numbered from `iteration`, until one of the limits (exclusive) is reached."""
        planned: deque[Batch] = deque()  # without their data
        refused: list[TrainingError] = []  # an order that cannot be, found while batches before it are still to come

        def numbers() -> Iterator[NDArray[np.int64]]:
            place, number = cursor, iteration
            while not (
                (last_epoch is not None and place.epoch >= last_epoch)
                or (last_iteration is not None and number >= last_iteration)
            ):
                plan = self._plan_at(number)
                step = self._sampler.plan_step(place, plan.batch_sizes)
                try:
                    mine = self._sampler.indices(step, self._rank)
                except TrainingError as error:
                    refused.append(error)
                    return
                planned.append(Batch(number, plan, step, len(mine), step.spent[self._rank], None))
                yield mine
                place, number = step.next, number + 1

        with closing(self._load(numbers(), derived_seed(self.seed, self._rank, iteration))) as loaded:
            for data in loaded:
                batch = planned.popleft()
                self.pass_code = self._source.code_of_pass(self.seed, batch.step.cursor.epoch)
                yield replace(batch, data=data)
        if refused:
            raise refused[0]
