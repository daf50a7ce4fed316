"""What a framework asks of all workers together, beside the sums of gradients: means of metrics, common decisions."""

from __future__ import annotations

import json
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.torch import Run
from worker_hooks.session import join
from worker_hooks.settings import Settings

T = TypeVar("T")
_KEY = "dynamix.framework"
_TEXT_BYTES = 4096  # of a text that one sum carries
_declared: set[str] = set()


class Workers:
    """All workers of the job; creating it joins them. Its methods are collective."""

    def __init__(self) -> None:
        self.settings = Settings.from_environment()
        self._comm = join(self.settings, Run.framework).comm
        self.rank, self.size = self._comm.rank, self._comm.size
        self.run: Run | None = None  # while a training is attached: its sums prove that all workers do the same

    def each(self, values: NDArray[np.float64], what: str) -> NDArray[np.float64]:
        """The `values` of every worker, shape (workers, *shape of values). `what` the script does, for errors.

        Raises TrainingError, on all workers, if another one does something else in a training.
        """
        rows = np.zeros((self.size, values.size))
        rows[self.rank] = values.ravel()
        if self.size > 1:
            rows = self._total(rows.ravel(), what).reshape(rows.shape)
        return rows.reshape(self.size, *values.shape)

    def from_rank_0(self, thing: T, what: str) -> T:
        """Rank 0's `thing`: None, a number, a text, or lists and dicts of them."""
        if self.size == 1:
            return thing
        text = json.dumps(thing).encode() if self.rank == 0 else b""
        length = int(self._total(np.array([float(len(text))]), what)[0])
        received = bytearray()
        while len(received) < length:
            part = np.zeros(_TEXT_BYTES)
            mine = text[len(received) : len(received) + _TEXT_BYTES]
            part[: len(mine)] = np.frombuffer(mine, dtype=np.uint8)
            received += self._total(part, what).astype(np.uint8).tobytes()
        found: T = json.loads(received[:length])
        return found

    def meet(self, what: str) -> None:
        """Wait until all workers are here."""
        if self.size > 1:
            self._total(np.zeros(1), what)

    def _total(self, values: NDArray[np.float64], what: str) -> NDArray[np.float64]:
        if self.run is not None:
            self.run.agree(what)
        key = f"{_KEY}.{values.size}"
        if key not in _declared:
            self._comm.declare(key)
            _declared.add(key)
        return self._comm.total(key, values)
