"""How many samples a worker computes at once. Pure.

Two numbers are known of its memory: the largest batch that fitted, and the smallest that did not. The search halves
what did not fit until something fits, and then tries the middle between the two. It ends when they are close, or after
MOST_FAILURES failures: each of them costs the time of a batch (both limits chosen by us).
"""

from __future__ import annotations

import math
from itertools import pairwise

from dynamix_ps.errors import TrainingError

MOST_FAILURES = 3
CLOSE = 1 / 8  # of what fits


class MemoryCeiling:
    """What fits into the memory of one worker.

    Args:
        limit: samples that the cluster file allows at once; None: any number.
        searches: whether memory is to be found out (`memory: auto`). Otherwise `limit` is believed.
    """

    def __init__(self, limit: int | None, searches: bool) -> None:
        self.searches = searches
        self.fails: int | None = None  # the smallest number that did not fit
        self._limit = limit
        self._fits = 0  # the largest number that did; 0: none is known
        self._fitted_before = 0  # the same, but to be proven anew
        self._failures = 0

    @property
    def is_needed(self) -> bool:
        """Whether any number of samples may be too large."""
        return self.searches or self._limit is not None

    @property
    def samples(self) -> float:
        """Samples that fit at once; NaN: no ceiling is known."""
        found = self._fits if self.fails is not None and self._fits else math.inf
        least = min(found, math.inf if self._limit is None else self._limit)
        return least if math.isfinite(least) else math.nan

    def is_proven(self, samples: int) -> bool:
        """Whether so many fit, as far as is known."""
        return samples <= self._fits if self.searches else self._limit is None or samples <= self._limit

    def at_once(self, samples: int, smallest: int = 1) -> int:
        """How many of these samples to compute at once. May be more than is proven to fit.

        Raises TrainingError if even `smallest` samples do not fit.
        """
        most = samples if self._limit is None else min(samples, self._limit)
        if not self.searches or most <= self._fits or self.fails is None:
            return most
        if not self._fits:
            if self.fails <= smallest:
                raise TrainingError(
                    f"a batch of {self.fails} sample{'s' if self.fails > 1 else ''} does not fit into memory, and it "
                    "cannot be divided; use a smaller model or less memory per sample"
                )
            return min(most, self._fitted_before or max(self.fails // 2, smallest))
        middle = (self._fits + self.fails) // 2
        if self._failures >= MOST_FAILURES or middle - self._fits < CLOSE * self._fits:
            middle = self._fits
        return min(most, max(middle, smallest))

    def fitted(self, samples: int) -> None:
        """A batch of so many samples fitted."""
        self._fits = max(self._fits, samples)

    def failed(self, samples: int) -> None:
        """So many did not fit, though they may have before."""
        self._failures += 1
        self.fails = samples if self.fails is None else min(self.fails, samples)
        if self._fits >= self.fails:
            self._fits = 0
        if self._fitted_before >= self.fails:
            self._fitted_before = 0

    def prove_anew(self) -> None:
        """Memory has got less, so what fitted may fit no more."""
        self._fitted_before, self._fits = self._fits, 0


def pieces(samples: int, at_once: int, smallest: int = 1) -> list[tuple[int, int]]:
    """(begin, end) of the micro-batches of a batch: as few as possible, and as equal as possible.

    Raises TrainingError if one of them would have fewer than `smallest` samples.
    """
    number = math.ceil(samples / at_once)
    if samples // number < smallest:
        raise TrainingError(
            f"{samples} samples in micro-batches of at most {at_once} leave one with {samples // number}, but batch "
            f"norm needs {smallest}; set at_once to {smallest + 1} or more"
        )
    bounds = [index * samples // number for index in range(number + 1)]
    return list(pairwise(bounds))
