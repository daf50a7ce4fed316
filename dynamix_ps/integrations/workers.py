"""What a framework asks of all workers together, beside the sums of gradients: means of metrics, common decisions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from dynamix_ps.errors import PeerLostError, TrainingError
from dynamix_ps.torch import Run
from worker_hooks.process.adopted import meet_others
from worker_hooks.session import join
from worker_hooks.settings import Settings

T = TypeVar("T")
_KEY = "dynamix.framework"
_VALUES = (16, 4096)  # of the sums: a data plane needs fixed sizes, and each takes memory of its servers
_DIMENSIONS = 8  # of a tensor, at most
_REDUCTIONS: dict[str, Callable[[NDArray[np.float64]], Any]] = {
    "sum": lambda rows: rows.sum(axis=0),
    "mean": lambda rows: rows.mean(axis=0),
    "avg": lambda rows: rows.mean(axis=0),
    "max": lambda rows: rows.max(axis=0),
    "min": lambda rows: rows.min(axis=0),
}
_declared: set[str] = set()


class WorkerGroup:
    """All workers of the job; creating it joins them. Its methods are collective."""

    def __init__(self) -> None:
        """Raises TrainingError in a rehearsal, and in a job that further workers may enter later."""
        meet_others()
        self.settings = Settings.from_environment()
        if self.settings.rehearsal is not None:
            raise TrainingError(
                "dynamix rehearse: the loop of this script belongs to a framework (Lightning, accelerate, or the "
                "Trainer of transformers), which computes for one worker, and a rehearsal computes for all; rehearse "
                "a script that calls dynamix.attach() and loops over run.batches() itself"
            )
        self._comm = join(self.settings, "torch").comm
        self.rank, self.size = self._comm.rank, self._comm.size
        if self._comm.first_size < self.size:
            raise TrainingError(
                f"the cluster file begins with {self._comm.first_size} of {self.size} workers, and the loop of this "
                "script belongs to a framework (Lightning, accelerate, or the Trainer of transformers), which counts "
                "on all of them; remove elastic.max_workers and `later`"
            )
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

    def tensors(self, tensor: torch.Tensor, what: str) -> list[torch.Tensor]:
        """The `tensor` of every worker, in the order of ranks. Their first dimensions may differ.

        Raises TrainingError, on all workers, if other dimensions do.
        """
        mine = tensor.detach().cpu().double().numpy()
        shape = np.zeros(_DIMENSIONS)
        shape[: mine.ndim] = mine.shape
        shapes = self.each(shape, what).astype(int)
        if (shapes[:, 1:] != shapes[0, 1:]).any():
            raise TrainingError(
                f"{what}: tensors of shapes {shapes[:, : mine.ndim].tolist()} differ beyond their first dimension; "
                "pad them to one shape before"
            )
        if not mine.ndim:
            rows: Any = self.each(mine, what)
        else:
            padded = np.zeros((shapes[:, 0].max(), *mine.shape[1:]))
            padded[: len(mine)] = mine
            rows = [row[:length] for row, length in zip(self.each(padded, what), shapes[:, 0], strict=True)]
        return [torch.from_numpy(np.array(row)).to(tensor) for row in rows]

    def reduced(self, tensor: torch.Tensor, how: str, what: str) -> torch.Tensor:
        """Sum, mean, max or min over the tensors of all workers, which have one shape. A mean is a floating number.

        Raises TrainingError for another reduction.
        """
        if how not in _REDUCTIONS:
            raise TrainingError(f"{what}: got reduction {how!r}, expected one of {', '.join(_REDUCTIONS)}")
        rows = self.each(tensor.detach().cpu().double().numpy(), what)
        value = torch.from_numpy(np.array(_REDUCTIONS[how](rows)))
        rounds = how in ("mean", "avg") and not tensor.is_floating_point()
        return value.to(tensor.device, torch.get_default_dtype() if rounds else tensor.dtype)

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
        """The sum over all workers, which have as many values.

        Raises PeerLostError if one of them is lost: nobody may take zeros for what it was to say.
        """
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
            mine = np.pad(part, (0, size + 1 - part.size))
            mine[-1] = 1.0  # this worker is in the sum
            total = self._comm.total(key, mine)
            if total[-1] != self.size:
                raise PeerLostError(f"{what} needs all workers, and one of them is lost; start again from a checkpoint")
            parts.append(total[: part.size])
        return np.concatenate([*parts, np.zeros(0)])
