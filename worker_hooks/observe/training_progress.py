"""How far training has come on its way to the end that the script named, and whether its learning rate falls. Pure."""

from __future__ import annotations

import math


class Horizon:
    """Of one training.

    Args:
        largest_lr: that the script had in the run which this one continues.
    """

    def __init__(self, largest_lr: float = 0.0) -> None:
        self.largest_lr = largest_lr
        self._ends: list[tuple[int | None, int | None]] = []

    def ask(self, epochs: int | None, iterations: int | None) -> None:
        """The script asks for training up to here, or for more of it."""
        self._ends.append((epochs, iterations))

    def trained_ratio(self, epochs: float, iterations: int) -> float:
        """Part of what was asked for that is complete, by the limit that is nearer.

        NaN from the second time on that something is asked for: then the first end was none, and who knows of this one.
        """
        if len(self._ends) != 1:
            return math.nan
        last_epoch, last_iteration = self._ends[0]
        by_epochs = epochs / last_epoch if last_epoch else 0.0
        by_iterations = iterations / last_iteration if last_iteration else 0.0
        return min(max(by_epochs, by_iterations), 1.0)

    def lr_ratio(self, lr: float) -> float:
        """The script's learning rate over the largest it had so far; NaN while it had none above 0."""
        self.largest_lr = max(self.largest_lr, lr)
        return max(lr, 0.0) / self.largest_lr if 0 < self.largest_lr < math.inf else math.nan
