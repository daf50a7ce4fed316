"""What fits into the memory of a worker in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from worker_hooks.memory.memory_ceiling import MemoryCeiling
from worker_hooks.memory.worker_memory import WorkerMemory

if TYPE_CHECKING:
    from worker_hooks.iteration.in_flight import IterationInFlight
    from worker_hooks.torch.parameters import TorchParameters


class TorchMemory(WorkerMemory):
    """That of all models of a training."""

    def __init__(
        self,
        ceiling: MemoryCeiling,
        parameters: TorchParameters,
        in_flight: Callable[[], IterationInFlight],
        tell: Callable[[str], None],
    ) -> None:
        super().__init__(ceiling, lambda: parameters.smallest_share, in_flight, tell)
        self._parameters = parameters

    def stepped_parameters(self) -> list[torch.nn.Parameter]:
        """Those that need a gradient."""
        known = self._parameters
        return [p for p in (*known.trained.values(), *known.frozen.values()) if p.requires_grad]
