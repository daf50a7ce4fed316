"""The order of samples that a sampler of the script draws, pass after pass, alike on all workers."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.errors import TrainingError
from worker_hooks.loading.global_generators import derived_seed, generators_kept

MOST_PASSES = 100  # over the data set, in one epoch of a sampler; one that names more is endless


def in_order(length: int) -> Callable[[int, int], NDArray[np.int64]]:
    """0, 1, 2 and so on in every pass."""
    numbers = np.arange(length, dtype=np.int64)
    return lambda seed, epoch: numbers


class DrawnOrder:
    """The samples in the order of a sampler. Batches of a batch sampler follow one another.

    A sampler draws each pass once. A generator of its own goes on from pass to pass, as in plain training; a resume
    draws the passes before it again. The global generators are seeded by (seed, epoch) for the draw, and afterwards
    they are as before. A sampler with `set_epoch` is told the epoch.
    """

    def __init__(self, sampler: Any, names_batches: bool, samples: int, seed: int) -> None:
        """Draws the first pass.

        Args:
            names_batches: whether the sampler names batches, not single samples.
            samples: in the data set.

        Raises TrainingError if the sampler does not name samples by their numbers.
        """
        self._sampler, self._names_batches, self._samples, self._seed = sampler, names_batches, samples, seed
        self._passes = 0  # that are drawn
        self._oldest = 0  # pass that may be asked for
        self._kept: dict[int, tuple[NDArray[np.int64], int]] = {}  # order and code of each pass
        self.first_batch: int | None = None  # samples in it; none: the sampler makes no batches
        self.length = 0
        self.first = self(seed, 0)
        self.length = len(self.first)

    def __call__(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """The sample numbers of this pass, int64. One before that of `forget` cannot be had again."""
        if seed != self._seed:  # rank 0 or the checkpoint has another one
            self.rewind()
            self._seed = seed
        while self._passes <= epoch:
            drawn = self._draw(self._passes)
            if self._passes >= min(self._oldest, epoch):
                self._kept[self._passes] = drawn, zlib.crc32(drawn.tobytes()) or 1
            self._passes += 1
        return self._kept[epoch][0]

    def rewind(self) -> None:
        """As if no pass was drawn."""
        self._passes, self._kept = 0, {}

    def forget(self, epoch: int) -> None:
        """The passes before this one are over."""
        self._oldest = epoch
        for over in [one for one in self._kept if one < epoch]:
            del self._kept[over]

    def code(self, seed: int, epoch: int) -> int:
        """A code of the order of this pass, above 0."""
        self(seed, epoch)
        return self._kept[epoch][1]

    def _begin_pass(self) -> None:
        """What a loader does with its generators before it asks its sampler."""

    def _draw(self, epoch: int) -> NDArray[np.int64]:
        sampler, most = self._sampler, MOST_PASSES * self._samples
        for one in (sampler, getattr(sampler, "sampler", None)):
            if set_epoch := getattr(one, "set_epoch", None):
                set_epoch(epoch)
        with generators_kept() as seed:
            seed(derived_seed(self._seed, epoch))
            self._begin_pass()
            drawn = list(islice(sampler, most + 1))
        if len(drawn) > most:
            raise TrainingError(
                f"the sampler {type(sampler).__name__} has not ended after {most} samples or batches; it must end, as "
                "each time it is asked it names the samples of one epoch"
            )
        if self._names_batches:
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
