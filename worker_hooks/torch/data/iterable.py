"""A torch `IterableDataset`, alone or in a DataLoader: a stream that every worker reads alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from dynamix_ps.errors import TrainingError
from worker_hooks.loading.batches import Batches, StreamWorker
from worker_hooks.loading.common_stream import CommonStream
from worker_hooks.loading.data_source import DataSource, Numbers
from worker_hooks.loading.global_generators import derived_seed
from worker_hooks.saved.checkpoint import Position
from worker_hooks.torch.data.batches import pinned, stack
from worker_hooks.torch.data.loader import InLoaderProcess
from worker_hooks.torch.data.shard_processes import CHUNK


class IterableSource(DataSource):
    """Reads in a thread, or in the processes of a loader where there are some."""

    def __init__(self, data: IterableDataset[Any] | DataLoader[Any]) -> None:
        self._loader = data if isinstance(data, DataLoader) else None
        self.dataset = data.dataset if isinstance(data, DataLoader) else data
        self.batch_size = None if self._loader is None else self._loader.batch_size
        self._collate: Callable[[list[Any]], Any] = stack if self._loader is None else self._loader.collate_fn
        if self._loader is not None and self._loader.pin_memory and torch.cuda.is_available():
            self._collate = pinned(self._collate)

    def check(self) -> None:
        """Raises TrainingError for a loader whose batches cannot be cut anew."""
        loader = self._loader
        if loader is None:
            return
        if type(loader).__iter__ is not DataLoader.__iter__:
            why = "its class has an __iter__ of its own, which would be lost; pass a plain torch.utils.data.DataLoader"
        elif loader.batch_size is None:
            why = "with batch_size=None it makes no batches; let the data set give samples, and say batch_size=..."
        elif not getattr(loader, "in_order", True):  # torch has it since 2.6
            why = "with in_order=False the order differs between workers; leave in_order out"
        else:
            return
        raise TrainingError(f"the hook cannot take batches out of this {type(loader).__name__} of a stream: {why}")

    @property
    def samples_compared(self) -> int:
        return 0  # a stream may be read only once; CommonStream compares what it reads

    def samples_per_pass(self, global_batch: int) -> int:
        return 0

    def fetch(self, numbers: Numbers) -> Any:
        raise NotImplementedError("a stream has no sample numbers")

    def numbers_once(self) -> Numbers:
        raise TrainingError(
            "run.evaluate() got a stream, whose samples have no numbers by which the workers could share them; pass a "
            "data set with len(d) and d[i], for example list(stream) where it fits into memory, or shards(...)"
        )

    def batches(self, start: Position, me: StreamWorker) -> Batches:
        def open_pass(epoch: int) -> Iterator[Any]:
            return self._open(derived_seed(start.seed, epoch), epoch)

        drop_last = self._loader is not None and self._loader.drop_last
        return CommonStream(open_pass, self._collate, start, me, drop_last)

    def _open(self, seed: int, epoch: int) -> Iterator[Any]:
        """The samples of a pass: of the processes of a loader, some of each in turn.

        Random numbers in these processes follow `seed`, alike on all workers.
        """
        if set_epoch := getattr(self.dataset, "set_epoch", None):
            set_epoch(epoch)
        script = self._loader
        if script is None or not script.num_workers:
            return iter(self.dataset)
        reading: DataLoader[Any] = DataLoader(
            self.dataset,
            batch_size=CHUNK,
            collate_fn=list,
            num_workers=script.num_workers,
            worker_init_fn=InLoaderProcess(script.worker_init_fn),
            generator=torch.Generator().manual_seed(seed),
            prefetch_factor=script.prefetch_factor,
            multiprocessing_context=script.multiprocessing_context,
            timeout=script.timeout,
        )
        return chain.from_iterable(reading)
