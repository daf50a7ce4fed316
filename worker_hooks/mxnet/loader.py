"""The script's Gluon DataLoader as the source of batches.

The samples come in the order of the loader's sampler, cut anew by the batch sizes of the plan. The processes or threads
that the loader has started when it was made load them, with all its settings. They are handed `prefetch` batches ahead,
so a new plan takes effect so many iterations later.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import count
from multiprocessing.connection import wait
from multiprocessing.pool import AsyncResult
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from mxnet.gluon.data import dataloader as gluon_loading

from dynamix_ps.errors import TrainingError
from worker_hooks.loading.data_source import DataSource, Numbers, begun_ahead, fetched_ahead
from worker_hooks.loading.drawn_order import DrawnOrder, in_order
from worker_hooks.loading.global_generators import derived_seed
from worker_hooks.loading.script_loaders import chosen_from, end_with_parent, gives_a_part, put_in_order, refused
from worker_hooks.sampling.sampler import Order, Permutation

_ENDING_S = 2.0  # a process has lost its connections, and is not gone yet


class GluonLoader(DataSource):
    """A `gluon.data.DataLoader`. One with `num_workers=0` loads in a thread, `prefetch` batches ahead."""

    def __init__(self, loader: DataLoader, prefetch: int, seed: int) -> None:
        self.loader, self.dataset, self._seed = loader, loader._dataset, seed
        self._pool = loader._worker_pool
        self._processes = [] if self._pool is None or loader._thread_pool else _never_replaced(self._pool)
        self.depth = prefetch if self._pool is None else loader._prefetch
        cutter = loader._batch_sampler
        plain = type(cutter) is BatchSampler
        self._sampler = cutter._sampler if plain else cutter
        size = getattr(cutter, "_batch_size", None)
        self.batch_size = size if isinstance(size, int) else None
        self.drops_last = plain and cutter._last_batch == "discard"

    def check(self) -> None:
        self._check_loader()
        put_in_order(self, self._own_order)

    def _check_loader(self) -> None:
        loader = self.loader
        if type(loader).__iter__ is not DataLoader.__iter__:
            why = "its class has an __iter__ of its own, which would be lost; pass a plain gluon.data.DataLoader"
        elif any(gives_a_part(one, self.dataset) for one in (loader._batch_sampler, self._sampler)):
            why = (
                "its sampler gives each process a part of the data, which the hook does itself; leave the sampler out, "
                "and say shuffle=True"
            )
        elif loader.auto_reload:
            why = "with auto_reload=True it has batches already that are not of the plan's sizes; leave auto_reload out"
        else:
            return
        raise refused(loader, why)

    def _own_order(self) -> Order:
        sampler, length = self._sampler, len(self.dataset)
        if type(sampler) is SequentialSampler and (sampler._start, sampler._length) == (0, length):
            return in_order(length)
        if type(sampler) is RandomSampler and sampler._length == length:
            return Permutation(length)
        return DrawnOrder(sampler, sampler is self.loader._batch_sampler, length, self._seed)

    def fetch(self, numbers: Numbers) -> Any:
        return self._begin(numbers, seed=0)()

    def load(self, batches: Iterator[Numbers], seed: int) -> Generator[Any, None, None]:
        if self._pool is None:
            return fetched_ahead(self.fetch, batches, self.depth)
        place = count()
        return begun_ahead(lambda one: self._begin(one, derived_seed(seed, next(place))), batches, self.depth)

    def _begin(self, numbers: Numbers, seed: int) -> Callable[[], Any]:
        """Start to load a batch; returns what waits for it. `seed`: of random numbers in a process of the loader."""
        loader, chosen = self.loader, chosen_from(self, numbers)
        if self._pool is None:
            return lambda: self._pinned(loader._batchify_fn([self.dataset[number] for number in chosen]))
        if loader._thread_pool:
            load, about = gluon_loading._thread_worker_fn, self.dataset
        else:
            load, about = load_in_process, seed
        return partial(self._received, self._pool.apply_async(load, (chosen, loader._batchify_fn, about)))

    def _received(self, task: AsyncResult[Any]) -> Any:
        """The batch of a process or thread of the loader. Raises TrainingError if it does not come."""
        loader = self.loader
        task.wait(loader._timeout)
        if not task.ready():
            raise self._ended() or TrainingError(
                f"this {type(loader).__name__} has given no batch for {loader._timeout:g} s, its timeout; make its "
                "data set faster, or give it a larger timeout="
            )
        found = task.get()
        if not self._processes:
            return self._pinned(found)
        try:
            return self._pinned(pickle.loads(found))
        except (OSError, EOFError) as error:  # the shared memory of a batch is with the process until now
            raise self._ended(_ENDING_S) or error from error

    def _ended(self, within_s: float = 0.0) -> TrainingError | None:
        """The error for a batch that is lost, if a process has ended or does so in this time."""
        if not any(process.has_ended(within_s) for process in self._processes):
            return None
        return TrainingError(
            f"a process of this {type(self.loader).__name__} has ended, and a batch with it: with fewer samples at "
            "once, a smaller prefetch= or fewer num_workers it needs less memory, also in /dev/shm"
        )

    def _pinned(self, batch: Any) -> Any:
        loader = self.loader
        if not loader._pin_memory:
            return batch
        return gluon_loading._as_in_context(batch, mx.cpu_pinned(loader._pin_device_id))


class _NeverReplaced:
    """A process of a pool that looks to it as if it never ended.

    The pool would replace it, by a fork from a thread of its own. MXNet's engine stops for a fork, and loses what the
    training thread is computing.
    """

    exitcode = None

    def __init__(self, process: Any) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Any:
        if name == "sentinel" and self.has_ended():
            raise AttributeError(name)  # the pool would wake up for it again and again
        return getattr(self._process, name)

    def has_ended(self, within_s: float = 0.0) -> bool:
        """Threads that ask `is_alive()` at the same time can find a process alive that has ended; these may ask."""
        return bool(wait([self._process.sentinel], within_s)) or not self._process.is_alive()


def _never_replaced(pool: Any) -> list[_NeverReplaced]:
    """The processes of `pool`, which does not replace them from now on."""
    if not isinstance(pool._pool[0], _NeverReplaced):
        pool._pool[:] = map(_NeverReplaced, pool._pool)
        locks = pool._inqueue._rlock, pool._outqueue._wlock
        pool._terminate._callback = partial(_terminate, list(pool._pool), locks, pool._terminate._callback)
    return list(pool._pool)


def _terminate(processes: Sequence[Any], locks: Sequence[Any], rest: Callable[..., None], *arguments: Any) -> None:
    """End the processes before the pool does the `rest`, which would wait for ever for a lock that a dead one holds.

    They may have been killed before, such as for lack of memory. None has anything to save.
    """
    for process in processes:
        process.kill()
        process.join()
    for lock in locks:
        lock.acquire(block=False)
        lock.release()
    rest(*arguments)


def load_in_process(samples: list[int], batchify: Callable[[list[Any]], Any], seed: int) -> bytes:
    """A batch as a process of a loader sends it. The processes are forks, so without seeds they would draw alike."""
    end_with_parent()
    random.seed(seed)
    np.random.seed(seed)
    mx.random.seed(seed & 0x7FFFFFFF)
    batch: bytes = gluon_loading._worker_fn(samples, batchify)
    return batch
