"""What a script says about its shards: which there are, and how to read one."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Number
from typing import Any, NamedTuple

from dynamix_ps.errors import TrainingError

MOST_COUNTED = 2**24 - 1  # counts stay exact in float32 up to here


@dataclass
class Shards:
    """A list of shards for `attach`, in the place of a data set.

    Args:
        shards: names of files or URLs, numbers of row groups, or whatever else `open_shard` understands; the same list
            on every worker.
        open_shard: returns the samples of one shard, in the same order every time. It runs in a thread of its own, on
            the worker that reads the shard.
        shuffle: whether the shards come in another order in every pass. The samples of a shard stay in its order.

    Raises TrainingError if there is no shard, or if `open_shard` cannot be called.
    """

    shards: Sequence[Any]
    open_shard: Callable[[Any], Iterable[Any]]
    shuffle: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.shards, (str, bytes)) or not hasattr(self.shards, "__len__"):
            raise TrainingError(
                f"shards() got a {type(self.shards).__name__}, expected a list of shards; for files: sorted(glob(...))"
            )
        if not len(self.shards):
            raise TrainingError("shards() got an empty list, expected at least one shard")
        if not callable(self.open_shard):
            raise TrainingError(
                f"shards() got a {type(self.open_shard).__name__} as open_shard, expected a function that returns the "
                "samples of a shard"
            )

    def __len__(self) -> int:
        return len(self.shards)

    def open(self, number: int, seed: int = 0) -> Iterator[Any]:
        """The samples of this shard. Raises TrainingError after too many.

        `seed`: of random numbers, 32 bits, where processes read.
        """
        return limited(self.open_shard(self.shards[number]))

    def name_of(self, number: int) -> str:
        """For messages."""
        return f"{number} ({self.shards[number]!r})"

    def first_samples(self, count: int = 2, begin: int = 0) -> list[Any]:
        """So many samples, fewer only if there are no more, from shard `begin` on."""
        found: list[Any] = []
        for number in range(begin, len(self)):
            found += islice(self.open(number), count - len(found))
            if len(found) == count:
                break
        return found

    def close(self) -> None:
        """End the processes that read them. Called by the thread that has read them."""

    def code(self) -> int:
        """32 bits that differ where lists differ: in the names of files without their folders, in numbers, in order."""
        return zlib.crc32("\n".join(map(_name, self.shards)).encode(errors="surrogateescape"))


class Piece(NamedTuple):
    """A shard, by its number, from sample `offset` on."""

    shard: int
    offset: int = 0


def _name(shard: Any) -> str:
    """The same wherever a script names the same shard, in another folder too."""
    if isinstance(shard, (str, bytes, os.PathLike)):
        return os.path.basename(os.fsdecode(shard))
    if isinstance(shard, (tuple, list)):
        return f"({', '.join(map(_name, shard))})"
    return str(shard) if isinstance(shard, Number) else type(shard).__name__


def limited(samples: Iterable[Any]) -> Iterator[Any]:
    """`samples`. Raises TrainingError where the trailer could not count them."""
    for place, sample in enumerate(samples):
        if place > MOST_COUNTED:
            raise TrainingError(f"it has more than {MOST_COUNTED} samples; make several shards of it")
        yield sample
