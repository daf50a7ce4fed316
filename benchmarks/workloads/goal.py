"""When a training ends."""

from __future__ import annotations

from collections import deque

AVERAGED = 3  # evaluations: single ones scatter by half a point


class Goal:
    """`epochs` passes over the data, and, where the target is not reached by then, more until it is.

    Args:
        epochs: passes that are made in any case.
        most_epochs: never more than these.
        target: test accuracy, as the mean of AVERAGED evaluations in a row.
    """

    def __init__(self, epochs: int, most_epochs: int, target: float) -> None:
        self.most_epochs = most_epochs
        self._epochs = epochs
        self._target = target
        self._newest: deque[float] = deque(maxlen=AVERAGED)
        self._met = False

    def reached(self, epochs: int, accuracy: float) -> bool:
        """Call after every evaluation, with the passes that are complete: whether training may end."""
        self._newest.append(accuracy)
        self._met |= sum(self._newest) / len(self._newest) >= self._target
        return self._met and epochs >= self._epochs
