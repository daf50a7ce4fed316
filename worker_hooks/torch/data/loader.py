"""The script's DataLoader as the source of batches.

The samples come in the order of the loader's sampler, cut anew by the batch sizes of the plan. A DataLoader of our own
loads them, with all settings of the script's. Its worker processes are handed `num_workers * prefetch_factor` batches
ahead, so a new plan takes effect so many iterations later.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler

from dynamix_ps.errors import TrainingError
from worker_hooks.loading.data_source import DataSource, Numbers, fetched_ahead
from worker_hooks.loading.drawn_order import DrawnOrder, in_order
from worker_hooks.loading.script_loaders import chosen_from, end_with_parent, gives_a_part, put_in_order, refused
from worker_hooks.sampling.sampler import Order, Permutation

CLOSED = "the run of this batch sampler is closed; attach again, and make a loader for that run"


def batch_size_of(loader: Any) -> int | None:
    """What a loader says of the size of its batches; None: nothing, as a data set."""
    size = getattr(loader, "batch_size", None)
    size = size if size is not None else getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


class TorchLoader(DataSource):
    """A `torch.utils.data.DataLoader`. One without worker processes loads in a thread, `prefetch` batches ahead."""

    def __init__(self, loader: DataLoader[Any], prefetch: int, seed: int) -> None:
        self.loader, self.dataset = loader, loader.dataset
        self._prefetch, self._seed = prefetch, seed
        self._processes = loader.num_workers
        self.depth = loader.num_workers * (loader.prefetch_factor or 0) if loader.num_workers else prefetch
        cutter = loader.batch_sampler
        self.batch_size = batch_size_of(loader)
        self.drops_last = type(cutter) is BatchSampler and cutter.drop_last
        self._handed = _Handed()
        self._generator = torch.Generator()
        self._lasting: DataLoader[Any] | None = None  # with persistent workers

    def check(self) -> None:
        check_loader(self.loader)
        put_in_order(self, self._own_order)

    def _own_order(self) -> Order:
        sampler, length = sampler_of(self.loader), len(self.dataset)
        if type(sampler) is SequentialSampler:
            return in_order(length)
        if type(sampler) is RandomSampler and sampler.generator is None and _takes_all(sampler, length):
            return Permutation(length)
        return TorchDrawnOrder(self.loader, self._seed)

    def fetch(self, numbers: Numbers) -> Any:
        """In a process of its own where the loader uses processes: a data set may open files where it is first used."""
        self._generator.manual_seed(0)
        batches = iter(self._loader_of([chosen_from(self, numbers)], min(self._processes, 1), lasting=False))
        return next(batches)

    def load(self, batches: Iterator[Numbers], seed: int) -> Generator[Any, None, None]:
        if not self._processes and self._prefetch:
            yield from fetched_ahead(self.fetch, batches, self._prefetch)
            return
        self._generator.manual_seed(seed)
        self._handed.batches = map(partial(chosen_from, self), batches)
        lasting = self._processes > 0 and self.loader.persistent_workers
        loader = self._lasting
        if loader is None:
            loader = self._loader_of(self._handed, self._processes, lasting)
        self._lasting = loader if lasting else None
        yield from iter(loader)

    def close(self) -> None:
        """End the processes that stay from pass to pass."""
        self._lasting, self._handed.batches = None, iter(())

    def _loader_of(self, batch_sampler: Any, processes: int, lasting: bool) -> DataLoader[Any]:
        """A loader with the settings of the script's, for these batches."""
        script, of_processes = self.loader, {}
        if processes:
            of_processes = {
                "prefetch_factor": script.prefetch_factor,
                "multiprocessing_context": script.multiprocessing_context,
                "worker_init_fn": InLoaderProcess(script.worker_init_fn),
                "persistent_workers": lasting,
            }
        return DataLoader(
            self.dataset,
            batch_sampler=batch_sampler,
            num_workers=processes,
            collate_fn=script.collate_fn,
            pin_memory=script.pin_memory,
            pin_memory_device=script.pin_memory_device,
            timeout=script.timeout,
            generator=self._generator,
            **of_processes,
        )


class TorchDrawnOrder(DrawnOrder):
    """Draws from the torch generators of loader and sampler as a plain loop over the loader does."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        sampler = sampler_of(loader)
        users = (loader, loader.sampler, loader.batch_sampler, sampler)
        found = {id(one): one for one in (getattr(user, "generator", None) for user in users)}.values()
        self._generators = [(one, one.get_state()) for one in found if isinstance(one, torch.Generator)]
        self._loader = loader
        super().__init__(sampler, sampler is loader.batch_sampler, len(loader.dataset), seed)  # type: ignore[arg-type]

    def rewind(self) -> None:
        """The generators of loader and sampler too."""
        super().rewind()
        for generator, state in self._generators:
            generator.set_state(state)

    def _begin_pass(self) -> None:
        """For each pass a DataLoader takes the seed of its worker processes first, from the generator of the order."""
        if self._loader.generator is not None:
            torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)


def sampler_of(loader: DataLoader[Any]) -> Any:
    """What names the samples one by one; for a batch sampler of the script's own class, that one."""
    cutter = loader.batch_sampler
    return cutter.sampler if type(cutter) is BatchSampler else cutter


class RunBatchSampler(Sampler[list[int]]):
    """`DataLoader(dataset, batch_sampler=run.batch_sampler())`: iterating over it is `run.batches(epochs=1)`."""

    def __init__(self, batches_of: Callable[[DataLoader[Any]], Iterator[Any]], batches: Callable[[], int]) -> None:
        """`batches_of`: the batches of a pass, loaded as a loader says. `batches`: how many that is about."""
        self.batches_of, self._batches = batches_of, batches

    def __iter__(self) -> Iterator[list[int]]:
        raise TrainingError(CLOSED)

    def __len__(self) -> int:
        return self._batches()


class _Handed:
    """The batch sampler of a loader: the batches of the loop that is under way."""

    batches: Iterator[list[int]] = iter(())

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches


class InLoaderProcess:
    """What a worker process of a loader does first. Then comes the script's `worker_init_fn`."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, number: int) -> None:
        end_with_parent()
        if self._then is not None:
            self._then(number)


def check_loader(loader: DataLoader[Any]) -> None:
    """Raises TrainingError, which says what to do, for a loader whose batches cannot be cut anew."""
    cutter = loader.batch_sampler
    samplers = (loader.sampler, cutter, getattr(cutter, "sampler", None))
    if type(loader).__iter__ is not DataLoader.__iter__:
        why = "its class has an __iter__ of its own, which would be lost; pass a plain torch.utils.data.DataLoader"
    elif any(gives_a_part(one, loader.dataset) for one in samplers):
        why = (
            "its sampler gives each process a part of the data, which the hook does itself; leave the "
            "DistributedSampler out, and say shuffle=True"
        )
    elif cutter is None:
        why = "with batch_size=None it makes no batches; say batch_size=..., as their sizes will change"
    elif not getattr(loader, "in_order", True):  # torch has it since 2.6
        why = "with in_order=False it cannot be told which batch is which; leave in_order out"
    elif loader.num_workers and loader.prefetch_factor == 0:
        why = "with prefetch_factor=0 its worker processes get no batch; leave prefetch_factor out"
    else:
        return
    raise refused(loader, why)


def _takes_all(sampler: RandomSampler, length: int) -> bool:
    """Whether a pass has every sample once."""
    return not sampler.replacement and sampler.num_samples == length
