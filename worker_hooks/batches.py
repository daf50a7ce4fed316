"""Batches of one worker: fetches the samples that the sampler names, `prefetch` batches ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.messages import Plan
from worker_hooks.sampler import Cursor, GlobalSampler, Step


@dataclass(frozen=True, slots=True)
class Batch:
    """One worker's data for one iteration."""

    iteration: int
    plan: Plan
    step: Step
    samples: int
    data: Any


class BatchStream:
    """Batches of one worker, `prefetch` of them prepared ahead by a thread.

    The sizes of a batch are fixed when its preparation starts, `prefetch` iterations before its use. A new plan takes
    effect with this lag.
    """

    def __init__(
        self,
        dataset: Any,
        fetch: Callable[[Any, NDArray[np.int64]], Any],
        sampler: GlobalSampler,
        rank: int,
        plan_at: Callable[[int], Plan],
        prefetch: int,
    ) -> None:
        self._dataset = dataset
        self._fetch = fetch
        self._sampler = sampler
        self._rank = rank
        self._plan_at = plan_at
        self._prefetch = prefetch

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
        ahead: deque[Future[Batch]] = deque()
        with ThreadPoolExecutor(1, "dynamix-prefetch") as pool:
            while True:
                while len(ahead) <= self._prefetch and not (
                    (last_epoch is not None and cursor.epoch >= last_epoch)
                    or (last_iteration is not None and iteration >= last_iteration)
                ):
                    plan = self._plan_at(iteration)
                    step = self._sampler.plan_step(cursor, plan.batch_sizes)
                    indices = self._sampler.indices(step, self._rank)
                    if self._prefetch:
                        ahead.append(pool.submit(self._load, iteration, plan, step, indices))
                    else:
                        ready: Future[Batch] = Future()
                        ready.set_result(self._load(iteration, plan, step, indices))
                        ahead.append(ready)
                    cursor, iteration = step.next, iteration + 1
                if not ahead:
                    return
                yield ahead.popleft().result()

    def _load(self, iteration: int, plan: Plan, step: Step, indices: NDArray[np.int64]) -> Batch:
        return Batch(iteration, plan, step, len(indices), self._fetch(self._dataset, indices))
