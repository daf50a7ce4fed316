"""What a framework asks of all workers together, beside the sums of gradients: means of metrics, common decisions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.torch import Run
from worker_hooks.session import join
from worker_hooks.settings import Settings

T = TypeVar("T")
_KEY = "dynamix.framework"
_VALUES = (16, 4096)  # of the sums: a data plane needs fixed sizes, and each takes memory of its servers
_declared: set[str] = set()


class Workers:
    """All workers of the job; creating it joins them. Its methods are collective."""

    def __init__(self) -> None:
        self.settings = Settings.from_environment()
        self._comm = join(self.settings, Run.framework).comm
        self.rank, self.size = self._comm.rank, self._comm.size
        self.run: Run | None = None  # while a training is attached: its sums prove that all workers do the same
        self._listeners: list[Callable[[dict[str, Any]], object]] = []

    def listen(self, listener: Callable[[dict[str, Any]], object]) -> None:
        """`run.listen(listener)`, now or as soon as there is a training."""
        self._listeners.append(listener)
        if self.run is not None:
            self.run.listen(listener)

    def attached(self, run: Run) -> Run:
        """The training begins."""
        self.run = run
        for listener in self._listeners:
            run.listen(listener)
        return run

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
        mine = np.frombuffer(text, dtype=np.uint8) if self.rank == 0 else np.zeros(length)
        found: T = json.loads(self._total(mine.astype(np.float64), what).astype(np.uint8).tobytes())
        return found

    def meet(self, what: str) -> None:
        """Wait until all workers are here."""
        if self.size > 1:
            self._total(np.zeros(1), what)

    def _total(self, values: NDArray[np.float64], what: str) -> NDArray[np.float64]:
        """The sum over all workers, which have as many values."""
        if self.run is not None:
            self.run.agree(f"{what} of {values.size} values")
        parts = []
        for begin in range(0, values.size, _VALUES[-1]):
            part = values[begin : begin + _VALUES[-1]]
            size = next(size for size in _VALUES if size >= part.size)
            key = f"{_KEY}.{size}"
            if key not in _declared:
                self._comm.declare(key)
                _declared.add(key)
            parts.append(self._comm.total(key, np.pad(part, (0, size - part.size)))[: part.size])
        return np.concatenate([*parts, np.zeros(0)])
