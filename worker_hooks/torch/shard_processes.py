"""Streams that processes of a torch DataLoader read: as many shards at once as there are processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils import worker

from worker_hooks.global_generators import derived_seed
from worker_hooks.shard_list import Shards, limited
from worker_hooks.torch.loader import InLoaderProcess

CHUNK = 16  # samples that a process sends at once (chosen by us)


def read_in_processes(
    dataset: IterableDataset[Any], processes: int, seed: int, init: Callable[[int], None] | None = None, **options: Any
) -> Iterator[Any]:
    """The samples of `dataset`, which divides itself between the processes: some of each in turn.

    The order depends on the samples alone.

    Args:
        seed: of random numbers in the processes.
        init: the script's `worker_init_fn`.
        options: further ones of the DataLoader.
    """
    reading: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=CHUNK,
        collate_fn=list,
        num_workers=processes,
        worker_init_fn=InLoaderProcess(init),
        generator=torch.Generator().manual_seed(seed),
        **options,
    )
    return chain.from_iterable(reading)


class GroupedShards(Shards):
    """The same samples in fewer shards: neighbours of the list are read together, one by each process."""

    def __init__(self, shards: Shards, processes: int) -> None:
        groups = [tuple(shards.shards[begin : begin + processes]) for begin in range(0, len(shards), processes)]
        super().__init__(groups, shards.open_shard, shards.shuffle)
        self._single, self._processes = shards, processes
        self._times: Counter[int] = Counter()  # that a group was opened

    def open(self, number: int) -> Iterator[Any]:
        group = self.shards[number]
        self._times[number] += 1
        seed = derived_seed(number, self._times[number])
        return limited(read_in_processes(_Group(self.open_shard, group), len(group), seed))

    def first_samples(self, count: int = 2, begin: int = 0) -> list[Any]:
        return self._single.first_samples(count, begin * self._processes)  # few: read here, without processes


class _Group(IterableDataset[Any]):
    """Some shards, one for each process."""

    def __init__(self, open_shard: Callable[[Any], Iterable[Any]], shards: Sequence[Any]) -> None:
        self._open_shard, self._shards = open_shard, shards

    def __iter__(self) -> Iterator[Any]:
        process = get_worker_info()
        assert process is not None, "processes read it"
        worker._worker_info = None  # whatever reads the shard divides itself no further, as WebDataset would
        return iter(self._open_shard(self._shards[process.id]))
