"""Shards as the source of batches: every worker reads some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from dynamix_ps.apportion import apportion
from dynamix_ps.errors import TrainingError
from worker_hooks.loading.batches import Batches, StreamWorker
from worker_hooks.loading.data_source import DataSource, Numbers
from worker_hooks.loading.shard_stream import ShardStream
from worker_hooks.sampling.shard_list import Shards
from worker_hooks.saved.checkpoint import Position

Collate = Callable[[list[Any]], Any]  # makes a batch of its samples


class ShardSource(DataSource):
    """Shards of which every worker reads some."""

    def __init__(self, shards: Shards, collate: Collate) -> None:
        self.dataset, self.collate = shards, collate

    def check(self) -> None:
        """The list was checked when it was made; samples are checked when they are read."""

    def samples_per_pass(self, global_batch: int) -> int:
        return 0

    def fetch(self, numbers: Numbers) -> Any:
        """What workers compare: the lists of shards, and the first sample of these and of what follows them."""
        shards: Shards = self.dataset
        samples = [sample for number in numbers.tolist() for sample in shards.first_samples(1, number)]
        return {"list of shards, num_workers": shards.code(), "": [self.collate([sample]) for sample in samples]}

    def batches(self, start: Position, me: StreamWorker) -> Batches:
        return ShardStream(self.dataset, self.collate, start, me)

    def part(self, shares: Sequence[int], here: range, batch_size: int) -> tuple[int, Iterator[tuple[int, Any]]]:
        """Neighbours of the list are one part."""
        parts = apportion(len(self.dataset), shares)
        return 0, self._batches_of(range(sum(parts[: here.start]), sum(parts[: here.stop])), batch_size)

    def _batches_of(self, numbers: Iterable[int], batch_size: int) -> Iterator[tuple[int, Any]]:
        shards: Shards = self.dataset
        samples = chain.from_iterable(map(shards.open, numbers))
        batch = list(islice(samples, batch_size))
        if not batch:
            first = shards.first_samples()
            if not first:
                raise TrainingError(f"run.evaluate(): no shard of {len(shards)} has a sample")
            yield 0, self.collate(first)
        while batch:
            yield len(batch), self.collate(batch)
            batch = list(islice(samples, batch_size))

    @property
    def list_of_parts(self) -> str:
        return f" over {len(self.dataset)} shards (code of their list: {self.dataset.code():08x})"
