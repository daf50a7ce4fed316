"""The order of samples that a script's own sampler draws, pass after pass, alike on all workers."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DataLoader

from dynamix_ps.errors import TrainingError
from worker_hooks.global_generators import derived_seed, generators_kept

MOST_PASSES = 100  # over the data set, in one epoch of a sampler; one that names more is endless


def sampler_of(loader: DataLoader[Any]) -> Any:
    """What names the samples one by one; for a batch sampler of the script's own class, that one."""
    cutter = loader.batch_sampler
    return cutter.sampler if type(cutter) is BatchSampler else cutter


def in_order(length: int) -> Callable[[int, int], NDArray[np.int64]]:
    """0, 1, 2 and so on in every pass."""
    numbers = np.arange(length, dtype=np.int64)
    return lambda seed, epoch: numbers


class DrawnOrder:
    """The samples in the order of the loader's sampler. Batches of a batch sampler follow one another.

    A sampler draws each pass once. Its own generator goes on from pass to pass, as in plain training; a resume draws
    the passes before it again. The global generators are seeded by (seed, epoch) for the draw, and afterwards they are
    as before. A sampler with `set_epoch` is told the epoch.
    """

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        """Draws the first pass. Raises TrainingError if it does not name samples by their numbers."""
        self._loader, self._seed = loader, seed
        users = (loader, loader.sampler, loader.batch_sampler, sampler_of(loader))
        found = {id(one): one for one in (getattr(user, "generator", None) for user in users)}.values()
        self._generators = [(one, one.get_state()) for one in found if isinstance(one, torch.Generator)]
        self._passes = 0  # that are drawn
        self._kept: dict[int, NDArray[np.int64]] = {}
        self._codes: dict[int, int] = {}
        self.first_batch: int | None = None  # samples in it; none: the sampler makes no batches
        self.length = 0
        self.first = self(seed, 0)
        self.length = len(self.first)

    def __call__(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """The sample numbers of this pass, int64. A pass that is over cannot be had again."""
        if seed != self._seed:  # rank 0 or the checkpoint has another one
            self.rewind()
            self._seed = seed
        while self._passes <= epoch:
            drawn = self._draw(self._passes)
            if self._passes == epoch:
                self._kept[epoch], self._codes[epoch] = drawn, zlib.crc32(drawn.tobytes()) or 1
            self._passes += 1
        return self._kept[epoch]

    def rewind(self) -> None:
        """As if no pass was drawn, the torch generators of loader and sampler too."""
        self._passes, self._kept, self._codes = 0, {}, {}
        for generator, state in self._generators:
            generator.set_state(state)

    def reached(self, seed: int, epoch: int) -> int:
        """A code of the order of this pass. Those before it are over."""
        self(seed, epoch)
        for over in [one for one in self._kept if one < epoch]:
            del self._kept[over], self._codes[over]
        return self._codes[epoch]

    def _draw(self, epoch: int) -> NDArray[np.int64]:
        loader, sampler = self._loader, sampler_of(self._loader)
        by_batches = sampler is loader.batch_sampler
        for one in (sampler, getattr(sampler, "sampler", None)):
            if set_epoch := getattr(one, "set_epoch", None):
                set_epoch(epoch)
        with generators_kept() as seed:
            seed(derived_seed(self._seed, epoch))
            if loader.generator is not None:
                # For each pass a DataLoader takes the seed of its worker processes first, from the same generator.
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            most = MOST_PASSES * len(loader.dataset)  # type: ignore[arg-type]
            drawn = list(islice(sampler, most + 1))
        if len(drawn) > most:
            raise TrainingError(
                f"the sampler {type(sampler).__name__} has not ended after {most} samples or batches; it must end, as "
                "each time it is asked it names the samples of one epoch"
            )
        if by_batches:
            self.first_batch = len(drawn[0]) if drawn else None
            drawn = [number for batch in drawn for number in batch]
        try:
            numbers = np.array([number.__index__() for number in drawn], dtype=np.int64)
        except AttributeError:
            odd = next(one for one in drawn if not hasattr(one, "__index__"))
            raise TrainingError(
                f"the sampler {type(sampler).__name__} names a sample by {odd!r}, expected its number"
            ) from None
        if not self.length or len(numbers) == self.length:
            return numbers
        raise TrainingError(
            f"the sampler {type(sampler).__name__} has drawn {len(numbers)} samples for epoch {epoch} and "
            f"{self.length} for the first one; draw as many in every epoch"
        )
