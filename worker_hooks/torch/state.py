"""The complete state of a torch model in training, as bytes: for the other workers and for checkpoints."""

from __future__ import annotations

import io

import torch

from dynamix_ps.errors import CheckpointError
from worker_hooks.checkpoint import FORMAT, Position, check_format


def pack(model: torch.nn.Module, optimizer: torch.optim.Optimizer, position: Position) -> bytes:
    """Parameters, buffers, optimizer state and `position`, bit for bit."""
    state = {
        "format": FORMAT,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "position": position.pack(),
    }
    packed = io.BytesIO()
    torch.save(state, packed)
    return packed.getvalue()


def restore(packed: bytes, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Position:
    """Put a packed state into model and optimizer; returns its position.

    Raises CheckpointError if it is damaged, or not of this model.
    """
    try:
        state = torch.load(io.BytesIO(packed), map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many types for damaged bytes
        raise CheckpointError(f"not a complete checkpoint of torch ({type(error).__name__}: {error})") from error
    check_format(state.get("format") if isinstance(state, dict) else None)
    try:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"not of this model and optimizer: {error}") from error
    return Position.unpack(state["position"])
