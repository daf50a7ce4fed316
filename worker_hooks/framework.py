"""What a framework adds to a training: its gradients and their sum, its arrays, its optimizer, its checkpoints.

A hook for another framework implements these methods (torch/run.py and mxnet/run.py do). It also makes its optimizer
call `Training._before_step` and `_after_step` around every step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from worker_hooks.checkpoint import Position
from worker_hooks.exchange import GradientExchange


class Framework(ABC):
    """One model of a framework, its optimizer and its data."""

    framework: ClassVar[str]
    framework_version: ClassVar[str]
    checkpoint_suffix: ClassVar[str]

    @abstractmethod
    def _make_exchange(self, prefix: str) -> GradientExchange:
        """The gradient exchange of this model, with its keys declared under `prefix`."""

    @abstractmethod
    def _pack(self, position: Position) -> bytes:
        """Model, optimizer and position, bit for bit."""

    @abstractmethod
    def _restore(self, packed: bytes) -> Position:
        """Put what `_pack` made into model and optimizer. Raises CheckpointError when it does not fit."""

    @abstractmethod
    def _check_storable(self, state: object) -> None:
        """Raises CheckpointError unless `_pack` can hold this state of a registered object."""

    @abstractmethod
    def _hyperparameters(self) -> Any:
        """What schedulers change in the optimizer, such as its learning rate."""

    @abstractmethod
    def _set_hyperparameters(self, saved: Any) -> None:
        """Put back what `_hyperparameters` returned."""

    @abstractmethod
    def _fetch(self, dataset: Any, indices: NDArray[np.int64]) -> Any:
        """These samples as one batch. For no indices: the first sample, which will count for nothing."""

    @abstractmethod
    def _propagate(self, loss: Any) -> None:
        """Run the backward pass."""

    @abstractmethod
    def _number(self, value: Any) -> float:
        """The value of one of the framework's scalars, or of a plain number."""

    @abstractmethod
    def _script_lr(self) -> float:
        """The learning rate as the script has set it, without our factor."""

    @abstractmethod
    def _inference(self) -> AbstractContextManager[None]:
        """Within it the model computes as for evaluation, without gradients."""
