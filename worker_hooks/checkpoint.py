"""Save and resume with torch: a checkpoint is whole or absent."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from dynamix_ps.errors import CheckpointError

FORMAT = 1


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
