"""When a training ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

AVERAGED = 3  # evaluations: single ones scatter by half a point


class Batches(Protocol):
    """A run of any framework."""

    def batches(self, epochs: int | None = None) -> Iterator[Any]: ...


class Goal:
    """`epochs` passes over the data, and, where the target is not reached by then, more until it is.

    Args:
        epochs: passes that are made in any case.
        most_epochs: never more than these.
        target: test accuracy, as the mean of AVERAGED evaluations in a row.
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
        """Those of the passes that are made in any case, then of more, as long as the target is not reached."""
        yield from run.batches(epochs=self._epochs)
        if self._met or self._most_epochs == self._epochs:
            return
        for batch in run.batches(epochs=self._most_epochs):
            yield batch
            if self._met:
                return
