"""How far the script asks to train, call after call. Pure."""

from __future__ import annotations

from dynamix_ps.errors import TrainingError

Limit = int | None


class ScriptLimits:
    """Turns the limits of the calls of `run.batches()` into limits of the whole training.

    A limit is of the whole training as long as it exceeds that of the calls before; otherwise it means that many more.
    So both usual loops over epochs do what they say. A resumed script makes the same calls again, and the ones that are
    complete give no batch.
    """

    def __init__(self) -> None:
        self.pass_number: int | None = None  # of the loop over `run.epochs()` that the script is in
        self._epochs = self._iterations = 0  # where the calls so far have brought the script

    def limits(self, epochs: Limit, iterations: Limit) -> tuple[Limit, Limit]:
        """The limits of a new call. Raises TrainingError if it has none."""
        if epochs is None and iterations is None:
            if self.pass_number is None:
                raise TrainingError(
                    "run.batches() needs epochs=... or iterations=... unless it is inside `for ... in run.epochs(...)`"
                )
            return self.pass_number + 1, None
        if self.pass_number is not None and epochs is not None:
            return self.pass_number + 1, iterations
        return _beyond(epochs, self._epochs), _beyond(iterations, self._iterations)

    def complete(self, epochs: Limit, iterations: Limit, trained: int) -> None:
        """The call with these limits of the whole training has given all its batches, `trained` iterations in all."""
        self._epochs = max(self._epochs, epochs or 0)
        self._iterations = max(self._iterations, iterations if iterations is not None else trained)

    def left(self, epoch: int, iteration: int) -> None:
        """The script has left the loop after so many complete epochs and iterations."""
        self._epochs, self._iterations = epoch, iteration


def _beyond(limit: Limit, reached: int) -> Limit:
    return limit if limit is None or limit > reached else reached + limit
