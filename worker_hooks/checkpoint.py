"""Checkpoints on disk: complete or absent. The framework decides on their content (torch/state.py, mxnet/state.py)."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dynamix_ps.errors import CheckpointError
from dynamix_ps.messages import Plan
from worker_hooks.learning_rate import Noise
from worker_hooks.sampler import Cursor

FORMAT = 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Position:
    """Where a training is: with the weights and the optimizer, all that a resume needs."""

    iteration: int
    cursor: Cursor
    plan: Plan
    noise: Noise = (0.0, 0.0)  # of learning_rate.py
    largest_lr: float = 0.0  # the largest learning rate of the script so far

    def pack(self) -> dict[str, Any]:
        """The position as plain values, for a checkpoint."""
        return dataclasses.asdict(self)

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> Position:
        plan = packed["plan"]
        variance, signal = packed.get("noise", (0.0, 0.0))
        place, held = Cursor(**packed["cursor"]), Plan(plan["version"], tuple(plan["batch_sizes"]))
        return cls(packed["iteration"], place, held, (variance, signal), packed.get("largest_lr", 0.0))


def save_checkpoint(path: Path, state: bytes) -> None:
    """Write `state` to `path` atomically: a temporary file in the same folder, flushed, then renamed over it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(state)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load_checkpoint(path: Path, restore: Callable[[bytes], T]) -> T:
    """`restore` of the checkpoint's bytes. Raises CheckpointError, with the path, if it is missing or unusable."""
    try:
        return restore(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such checkpoint; give the path of a file that run.save() wrote") from None
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def check_format(found: object) -> None:
    """Raises CheckpointError unless a checkpoint has this format."""
    if found != FORMAT:
        raise CheckpointError(f"checkpoint format {found!r}, expected {FORMAT}; it is of another version")
