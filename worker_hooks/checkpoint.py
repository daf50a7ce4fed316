"""Save and resume: a checkpoint is whole or absent."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dynamix_ps.errors import CheckpointError
from dynamix_ps.messages import Plan
from worker_hooks.learning_rate import Noise
from worker_hooks.sampler import Cursor

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Position:
    """Where a training is, besides its weights: all that is needed to go on."""

    iteration: int
    cursor: Cursor
    plan: Plan
    noise: Noise = (0.0, 0.0)  # what the learning rate follows

    def pack(self) -> dict[str, Any]:
        """As plain values, fit for a checkpoint."""
        return dataclasses.asdict(self)

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> Position:
        plan = packed["plan"]
        variance, signal = packed.get("noise", (0.0, 0.0))
        place, held = Cursor(**packed["cursor"]), Plan(plan["version"], tuple(plan["batch_sizes"]))
        return cls(packed["iteration"], place, held, (variance, signal))


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write `state` to `path` atomically: a temporary file in the same folder, flushed, then renamed over it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            torch.save({"format": FORMAT, **state}, out)
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


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint. Raises CheckpointError if it is missing, damaged or of another format."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such checkpoint; give the path of a file that run.save() wrote") from None
    except Exception as error:  # torch.load raises many types for a damaged file
        raise CheckpointError(f"{path}: not a complete checkpoint ({type(error).__name__}: {error})") from error
    found = state.get("format") if isinstance(state, dict) else None
    if found != FORMAT:
        raise CheckpointError(f"{path}: checkpoint format {found!r}, expected {FORMAT}; it is of another version")
    return dict(state)
