"""How much of the training that the script asked for is done, and whether its learning rate falls. Pure."""

from __future__ import annotations

import math


class TrainingProgress:
    """The progress of one training.

    Args:
        largest_lr: the largest learning rate of the script in the run that this one resumes; 0: there was none.
        begin: part of the training that was done in that run, 0 to 1; none: it is not known.
    """

    def __init__(self, largest_lr: float = 0.0, begin: float | None = 0.0) -> None:
        self.largest_lr = largest_lr
        self._begin = math.nan if begin is None else begin
        self._limits: list[tuple[int | None, int | None]] = []
        self._may_go_on = False

    def ask(self, epochs: int | None, iterations: int | None, may_go_on: bool = False) -> None:
        """The script asks for batches up to these limits. `may_go_on`: it may ask for more of them later."""
        self._limits.append((epochs, iterations))
        self._may_go_on = may_go_on

    def ratio_to_rely_on(self, epochs: float, iterations: int) -> float:
        """The same as `trained_ratio`, but NaN as well while the script may ask for more."""
        return math.nan if self._may_go_on else self.trained_ratio(epochs, iterations)

    def trained_ratio(self, epochs: float, iterations: int) -> float:
        """Part of the training that is done, 0 to 1, by the limit that is nearer.

        Before the first `batches()` call it is the part that training began with. It is NaN after a second one: the
        first limit was not the end.
        """
        if not self._limits:
            return self._begin
        if len(self._limits) > 1:
            return math.nan
        last_epoch, last_iteration = self._limits[0]
        by_epochs = epochs / last_epoch if last_epoch else 0.0
        by_iterations = iterations / last_iteration if last_iteration else 0.0
        return min(max(by_epochs, by_iterations), 1.0)

    def lr_ratio(self, lr: float) -> float:
        """The script's learning rate over its largest one so far; NaN until there is one above 0."""
        self.largest_lr = max(self.largest_lr, lr)
        return max(lr, 0.0) / self.largest_lr if 0 < self.largest_lr < math.inf else math.nan
