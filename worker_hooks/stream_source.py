"""Data without sample numbers: shards that the workers share, and streams that every worker reads alike."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from typing import Any

from dynamix_ps.errors import TrainingError
from worker_hooks.batches import Batches, StreamWorker
from worker_hooks.checkpoint import Position
from worker_hooks.data_source import DataSource, Numbers
from worker_hooks.shard_list import Shards
from worker_hooks.shard_stream import ShardStream

Collate = Callable[[list[Any]], Any]  # makes a batch of its samples


class StreamSource(DataSource):
    """Samples that come one after the other. Their batches know how to read ahead, so `depth` is 0."""

    depth = 0

    @abstractmethod
    def batches(self, start: Position, me: StreamWorker) -> Batches:
        """The batches of this worker from `start` on.

        Raises TrainingError if `start` is no place in this stream.
        """

    def samples_per_pass(self, global_batch: int) -> int:
        return 0

    def numbers_once(self) -> Numbers:
        raise TrainingError(
            "run.evaluate() got a stream, whose samples have no numbers by which the workers could share them; pass a "
            "data set with len(d) and d[i], for example list(stream) where it fits into memory"
        )

    def load(self, batches: Iterator[Numbers], seed: int) -> Generator[Any, None, None]:
        raise NotImplementedError("a stream has no sample numbers")


class ShardSource(StreamSource):
    """Shards of which every worker reads some."""

    def __init__(self, shards: Shards, collate: Collate) -> None:
        self.dataset, self._collate = shards, collate

    def check(self) -> None:
        """The list was checked when it was made; samples are checked when they are read."""

    def fetch(self, numbers: Numbers) -> Any:
        """What workers compare: the lists of shards, and the first sample of these and of what follows them."""
        shards: Shards = self.dataset
        samples = [sample for number in numbers.tolist() for sample in shards.first_samples(1, number)]
        return {"list of shards, num_workers": shards.code(), "": [self._collate([sample]) for sample in samples]}

    def batches(self, start: Position, me: StreamWorker) -> Batches:
        return ShardStream(self.dataset, self._collate, start, me)
