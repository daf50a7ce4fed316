"""Where the batches of a training come from: a data set, a loader of the script, or a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import apportion
from dynamix_ps.errors import TrainingError
from worker_hooks.loading.data_set import check_map_style
from worker_hooks.loading.drawn_order import DrawnOrder
from worker_hooks.loading.script_errors import of_threads
from worker_hooks.sampling.sampler import Order

Numbers = NDArray[np.int64]  # of samples
OWN_THREAD = "open it where it is used first, in __getitem__, or say prefetch: 0 in the cluster file"


class DataSource(ABC):
    """Samples by number, as batches. Those of a stream have none (`Stream`).

    Attributes:
        dataset: what the samples are in.
        depth: batches that are prepared ahead.
        order: of each pass; none: a permutation that comes from the seed.
        batch_size: that the script names with the data; none: it does not.
        drops_last: whether a pass leaves out what remains beyond whole batches.
    """

    dataset: Any
    depth: int = 0
    order: Order | None = None
    batch_size: int | None = None
    drops_last = False

    @property
    def drawn(self) -> DrawnOrder | None:
        """The order, where only a sampler of the script knows it."""
        return self.order if isinstance(self.order, DrawnOrder) else None

    @abstractmethod
    def check(self) -> None:
        """Raises TrainingError, which says what to do instead, unless a training can take its batches from here."""

    @abstractmethod
    def fetch(self, numbers: Numbers) -> Any:
        """One batch of these samples. Without numbers: two samples, which will count for nothing."""

    def load(self, batches: Iterator[Numbers], seed: int) -> Generator[Any, None, None]:
        """The batches of these samples, in order. Takes up to `depth` of `batches` ahead.

        `seed`: of random numbers in processes that load.
        """
        raise NotImplementedError("a stream has no sample numbers")

    def samples_per_pass(self, global_batch: int) -> int:
        """Samples in one pass, where the first global batch has so many; 0: of a stream. Call `check` before."""
        samples = len(self.dataset) if self.drawn is None else self.drawn.length
        return samples - samples % global_batch if self.drops_last else samples

    @property
    def samples_compared(self) -> int:
        """Of so many samples, by number, the workers compare a few. Call `check` before."""
        return len(self.dataset)

    def numbers_once(self) -> Numbers:
        """The samples of one pass, for an evaluation. Call `check` before."""
        if self.drawn is None:
            return np.arange(len(self.dataset), dtype=np.int64)
        self.drawn.rewind()
        return self.drawn.first

    def part(self, shares: Sequence[int], here: range, batch_size: int) -> tuple[int, Iterator[tuple[int, Any]]]:
        """What the workers `here` of this process score in an evaluation. Call `check` before.

        The parts of the workers are in proportion to `shares`. A process without a part gets a batch that counts for
        nothing, so that it learns what is scored.

        Returns the samples of all parts, 0 if that is not known, and the batches, each with its number of samples.

        Raises TrainingError if there is no sample, or if there are no parts for several workers.
        """
        rows = self.numbers_once()
        if not len(rows):
            raise TrainingError("run.evaluate() got an empty data set, expected at least one sample")
        parts = apportion(len(rows), shares)
        mine = rows[sum(parts[: here.start]) : sum(parts[: here.stop])]
        batches = [mine[start : start + batch_size] for start in range(0, max(len(mine), 1), batch_size)]
        return len(rows), zip(map(len, batches), self.load(iter(batches), seed=0), strict=True)

    @property
    def list_of_parts(self) -> str:
        """What the parts are made of, where this is no data set with sample numbers; the same on every worker."""
        return ""

    def code_of_pass(self, seed: int, epoch: int) -> int:
        """A number that is equal on two workers exactly if a sampler of the script has drawn the same order for this
        pass on both; 0 where none has."""
        return 0 if self.drawn is None else self.drawn.code(seed, epoch)

    def forget(self, epoch: int) -> None:
        """The passes before this one are over: nothing of them will be asked for again."""
        if self.drawn is not None:
            self.drawn.forget(epoch)

    def close(self) -> None:  # noqa: B027  # most have nothing to end
        """End processes that stay from pass to pass."""


class DataSetSource(DataSource):
    """A map-style data set. A thread prepares `depth` batches ahead."""

    def __init__(self, dataset: Any, fetch: Callable[[Any, Numbers], Any], depth: int) -> None:
        self.dataset, self.depth = dataset, depth
        self._fetch = fetch

    def check(self) -> None:
        check_map_style(self.dataset)

    def fetch(self, numbers: Numbers) -> Any:
        return self._fetch(self.dataset, numbers)

    def load(self, batches: Iterator[Numbers], seed: int) -> Generator[Any, None, None]:
        return fetched_ahead(self.fetch, batches, self.depth)


def fetched_ahead(
    fetch: Callable[[Numbers], Any], batches: Iterator[Numbers], depth: int
) -> Generator[Any, None, None]:
    """What `fetch` makes of `batches`, in order; a thread does it `depth` batches ahead."""
    if not depth:
        yield from map(fetch, batches)
        return

    def fetched(numbers: Numbers) -> Any:
        try:
            return fetch(numbers)
        except Exception as error:
            raise of_threads(error, "the data set", OWN_THREAD) from error

    with ThreadPoolExecutor(1, "dynamix-prefetch") as pool:
        yield from begun_ahead(lambda numbers: pool.submit(fetched, numbers).result, batches, depth)


def begun_ahead(
    begin: Callable[[Numbers], Callable[[], Any]], batches: Iterator[Numbers], depth: int
) -> Generator[Any, None, None]:
    """The batches that `begin` starts to load, in order. While one is used, up to `depth` others are being loaded.

    `begin` returns what waits for the batch. A caller that leaves early waits for the batches that are begun.
    """
    begun: deque[Callable[[], Any]] = deque()
    try:
        for numbers in batches:
            begun.append(begin(numbers))
            if len(begun) > depth:
                yield begun.popleft()()
        while begun:
            yield begun.popleft()()
    except GeneratorExit:
        with suppress(Exception):
            for wait_for in begun:
                wait_for()
        raise
