"""How many samples a worker computes at once, in any framework: found out, kept to, and told. Pure.

Two numbers are known of its memory: the largest batch that fitted, and the smallest that did not. The search halves
what did not fit until something fits, and then tries the middle between the two. It ends when they are close, or after
MOST_FAILURES failures: each of them costs the time of a batch (both limits chosen by us).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

from dynamix_ps.errors import TrainingError

if TYPE_CHECKING:
    from worker_hooks.iteration.in_flight import IterationInFlight
    from worker_hooks.loading.batches import Batch

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


class WorkerMemory:
    """The ceiling of one worker, for all models of a training."""

    def __init__(
        self,
        ceiling: MemoryCeiling,
        smallest: Callable[[], int],
        in_flight: Callable[[], IterationInFlight],
        tell: Callable[[str], None],
    ) -> None:
        """`smallest`: samples that a micro-batch needs. `tell` gets a sentence for people when a batch did not fit."""
        self.ceiling = ceiling
        self.tokens_at_once: int | None = None  # where sizes are in tokens: a batch of no more is not divided
        self.smallest_micro_batch = smallest
        self._in_flight, self._tell = in_flight, tell
        self._failures: list[int] = []  # not told yet
        self._error = ""
        self._called_in = -1  # the newest iteration in which the script has called a model

    @property
    def at_once(self) -> float:
        """What fits at once in the unit of the sizes; NaN: no ceiling is known."""
        return self.ceiling.samples if self.tokens_at_once is None else self.tokens_at_once

    def samples_in_flight(self) -> int:
        """Of this worker's batch, of which a model is being called; 0: there is none, or all its tokens fit."""
        now = self._in_flight()
        if not now.has_batch:
            return 0
        self._called_in = now.batch.iteration
        return 0 if self._tokens_fit(now.batch) else now.batch.samples

    def _tokens_fit(self, batch: Batch) -> bool:
        return self.tokens_at_once is not None and batch.size <= self.tokens_at_once

    def did_not_fit(self, samples: int, error: str) -> None:
        """So many samples at once did not fit."""
        self.ceiling.failed(samples)
        self._failures.append(samples)
        self._error = error

    def tell_failures(self) -> None:
        """The batch is computed: say what has not fitted since the last time, and what does."""
        if not self._failures or math.isnan(self.ceiling.samples):
            return
        sizes = ", ".join(map(str, self._failures))
        self._failures.clear()
        self._tell(
            f"{sizes} samples at once did not fit ({self._error}), {self.ceiling.samples:g} do; "
            "larger batches are computed in micro-batches"
        )

    def check_called(self) -> None:
        """Raises TrainingError if the present batch needs micro-batches and went past them."""
        now, ceiling = self._in_flight(), self.ceiling
        fits = ceiling.searches or ceiling.is_proven(now.batch.samples) or self._tokens_fit(now.batch)
        if fits or self._called_in == now.batch.iteration:
            return
        raise TrainingError(
            f"this batch of {now.batch.samples} samples exceeds at_once, but the script has not called a model that it "
            "gave to attach(), so nothing was divided into micro-batches; call model(inputs) itself, or raise at_once"
        )


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
