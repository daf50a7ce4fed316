"""What fits into the memory of a worker, in any framework: found out, kept to, and told."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from dynamix_ps.errors import TrainingError
from worker_hooks.memory.memory_ceiling import MemoryCeiling

if TYPE_CHECKING:
    from worker_hooks.iteration.in_flight import IterationInFlight
    from worker_hooks.loading.batches import Batch


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
