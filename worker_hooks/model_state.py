"""The state of models and optimizers, for checkpoints, for the other workers, and for workers that enter."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from typing import Any, BinaryIO

from worker_hooks.saved.checkpoint import Position


class ModelState(ABC):
    """That of one training, in the form of its framework."""

    def pack(self, position: Position) -> bytes:
        """Model, optimizer and position, bit for bit."""
        packed = io.BytesIO()
        self.write(position, packed)
        return packed.getvalue()

    @abstractmethod
    def write(self, position: Position, out: BinaryIO) -> None:
        """Write what `pack` returns, from its beginning to its end. `out` cannot go back."""

    @abstractmethod
    def restore(self, packed: BinaryIO) -> Position:
        """Put what `write` wrote into model and optimizer. Raises CheckpointError when it does not fit."""

    def send(self, position: Position, out: BinaryIO) -> None:
        """Write model, optimizer and position for a worker that enters. `out` cannot go back."""
        self.write(position, out)

    def receive(self, state: BinaryIO) -> Position:
        """Put what `send` wrote into model and optimizer. `state` cannot go back.

        Raises CheckpointError when it does not fit, and PeerLostError when it breaks off. Nothing is changed then.
        """
        return self.restore(io.BytesIO(state.read()))

    @abstractmethod
    def storable(self, state: Any, where: str) -> Any:
        """This state of a registered object as `pack` can hold it. `where`: its name in an error.

        Raises CheckpointError if there is no such form.
        """

    @abstractmethod
    def hyperparameters(self) -> Any:
        """What schedulers change in the optimizer, such as its learning rate."""

    @abstractmethod
    def set_hyperparameters(self, saved: Any) -> None:
        """Put back what `hyperparameters` returned."""
