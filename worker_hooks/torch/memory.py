"""What fits into the memory of a worker in torch, and the models that keep to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from dynamix_ps.errors import TrainingError
from worker_hooks.memory_ceiling import MemoryCeiling
from worker_hooks.torch.micro_batches import MicroBatchedForward

if TYPE_CHECKING:
    from worker_hooks.iteration import IterationInFlight
    from worker_hooks.torch.parameters import TrainedParameters


class WorkerMemory:
    """The ceiling of one worker, for all models of a training."""

    def __init__(
        self,
        ceiling: MemoryCeiling,
        models: Sequence[torch.nn.Module],
        parameters: TrainedParameters,
        in_flight: Callable[[], IterationInFlight],
        tell: Callable[[str], None],
    ) -> None:
        """`tell` gets a sentence for people whenever a batch did not fit."""
        self.ceiling = ceiling
        self._parameters, self._in_flight, self._tell = parameters, in_flight, tell
        self._failures: list[int] = []  # not told yet
        self._error = ""
        self._called_in = -1  # the newest iteration in which the script has called a model
        self._forwards = [MicroBatchedForward(self, model) for model in models] if ceiling.is_needed else []

    def remove(self) -> None:
        """Leave the models alone from now on."""
        for forward in self._forwards:
            forward.remove()

    def samples_in_flight(self) -> int:
        now = self._in_flight()
        if not now.has_batch:
            return 0
        self._called_in = now.batch.iteration
        return now.batch.samples

    def smallest_micro_batch(self) -> int:
        return 2 if self._parameters.has_batch_norm else 1

    def stepped_parameters(self) -> list[torch.nn.Parameter]:
        known = self._parameters
        return [p for p in (*known.trained.values(), *known.frozen.values()) if p.requires_grad]

    def did_not_fit(self, samples: int, error: str) -> None:
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
        if ceiling.searches or ceiling.is_proven(now.batch.samples) or self._called_in == now.batch.iteration:
            return
        raise TrainingError(
            f"this batch of {now.batch.samples} samples exceeds at_once, but the script has not called a model that it "
            "gave to attach(), so nothing was divided into micro-batches; call model(inputs) itself, or raise at_once"
        )
