"""Decides when a training ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

AVERAGED = 3  # evaluations, because single ones scatter by half a point


class Batches(Protocol):
    """A run of any framework."""

    def batches(self, epochs: int | None = None) -> Iterator[Any]: ...


class Goal:
    """`epochs` passes over the data, then more until the target is reached.

    Args:
        epochs: the smallest number of passes.
        most_epochs: the largest number of passes.
        target: test accuracy to reach, as the mean of AVERAGED evaluations in a row.
    """

    def __init__(self, epochs: int, most_epochs: int, target: float) -> None:
        self._epochs = epochs
        self._most_epochs = most_epochs
        self._target = target
        self._newest: deque[float] = deque(maxlen=AVERAGED)
        self._met = False

    def see(self, accuracy: float) -> None:
        """Call after every evaluation."""
        self._newest.append(accuracy)
        self._met |= sum(self._newest) / len(self._newest) >= self._target

    def batches(self, run: Batches) -> Iterator[Any]:
        """Batches of `epochs` passes, then of more passes while the target is not reached."""
        yield from run.batches(epochs=self._epochs)
        if self._met or self._most_epochs == self._epochs:
            return
        for batch in run.batches(epochs=self._most_epochs):
            yield batch
            if self._met:
                return
