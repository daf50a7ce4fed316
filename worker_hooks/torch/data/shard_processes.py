"""Shards that processes of a torch DataLoader read: as many at once as there are processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info
from torch.utils.data._utils import worker

from worker_hooks.loading.global_generators import derived_seed, seed_generators
from worker_hooks.sampling.shard_list import Shards, limited
from worker_hooks.torch.data.loader import InLoaderProcess

CHUNK = 16  # samples that a process sends at once (chosen by us)


class GroupedShards(Shards):
    """The same samples in fewer shards: neighbours of the list are read together, one by each process.

    The processes are started when the first group is read, and stay until `close`. The thread that reads must live as
    long as they shall (`InLoaderProcess`).
    """

    def __init__(self, shards: Shards, processes: int) -> None:
        groups = [tuple(shards.shards[begin : begin + processes]) for begin in range(0, len(shards), processes)]
        super().__init__(groups, shards.open_shard, shards.shuffle)
        self._single, self._processes = shards, processes
        self._pool: _Pool | None = None

    def open(self, number: int, seed: int = 0) -> Iterator[Any]:
        if self._pool is None:
            self._pool = _Pool(self.open_shard, self.shards, self._processes)
        return limited(self._pool.read(number, seed))

    def first_samples(self, count: int = 2, begin: int = 0) -> list[Any]:
        return self._single.first_samples(count, begin * self._processes)  # few: read here, without processes

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = None


class _Request(NamedTuple):
    """For the next samples of a shard."""

    reading: int  # of a group, by its number
    group: int
    seed: int  # of random numbers


class _Pool(Sampler[_Request]):
    """Processes that read one group of shards after the other.

    A DataLoader asks every process in turn for the next samples of its shard, some requests ahead. Answers to requests
    of an earlier group are dropped; they are empty unless it was left before its end.
    """

    def __init__(self, open_shard: Callable[[Any], Iterable[Any]], groups: Sequence[Sequence[Any]], size: int) -> None:
        self._groups, self._size = groups, size
        self._request = _Request(0, 0, 0)
        self._answers: Iterator[Any] | None = None
        self._loader: DataLoader[Any] = DataLoader(
            _Reading(open_shard, groups),
            batch_size=None,
            sampler=self,
            num_workers=size,
            collate_fn=_as_it_is,
            worker_init_fn=InLoaderProcess(None),
            generator=torch.Generator().manual_seed(0),
        )

    def __iter__(self) -> Iterator[_Request]:
        while True:
            yield self._request

    def read(self, group: int, seed: int) -> Iterator[Any]:
        """The samples of this group: some of each shard in turn, in an order that the samples alone decide."""
        self._request = _Request(self._request.reading + 1, group, seed)
        if self._answers is None:
            self._answers = iter(self._loader)
        unread = list(range(len(self._groups[group])))  # processes that have not read their shard to its end
        got: list[deque[list[Any]]] = [deque() for _ in range(self._size)]
        while unread:
            for process in tuple(unread):
                while not got[process]:
                    reading, sender, samples = next(self._answers)
                    if reading == self._request.reading and sender in unread:
                        got[sender].append(samples)
                samples = got[process].popleft()
                if len(samples) < CHUNK:
                    unread.remove(process)
                yield from samples

    def close(self) -> None:
        """End the processes."""
        self._answers = None


class _Reading(Dataset[Any]):
    """In each process: the shard that it reads."""

    def __init__(self, open_shard: Callable[[Any], Iterable[Any]], groups: Sequence[Sequence[Any]]) -> None:
        self._open_shard, self._groups = open_shard, groups
        self._process = -1
        self._reading = 0
        self._samples: Iterator[Any] = iter(())

    def __getitem__(self, request: _Request) -> tuple[int, int, list[Any]]:
        """(reading, process, next samples): fewer than CHUNK at the end of the shard."""
        if request.reading != self._reading:
            self._begin(request)
        return self._reading, self._process, list(islice(self._samples, CHUNK))

    def _begin(self, request: _Request) -> None:
        if self._process < 0:
            process = get_worker_info()
            assert process is not None, "processes read it"
            self._process = process.id
            worker._worker_info = None  # whatever reads a shard divides itself no further, as WebDataset would
        seed_generators(derived_seed(request.seed, self._process))
        self._reading, group = request.reading, self._groups[request.group]
        self._samples = iter(self._open_shard(group[self._process])) if self._process < len(group) else iter(())


def _as_it_is(answer: Any) -> Any:
    return answer
