"""Makes all workers start from rank 0's state, on CPU and GPU, through sums (the others add zeros)."""

from __future__ import annotations

import io
from typing import Any

import torch

from dynamix_ps.comm import Comm
from dynamix_ps.errors import StallError

PATIENCE_S = 600.0


def total(comm: Comm, name: str, buffer: torch.Tensor) -> torch.Tensor:
    """Blocking in-place sum of `buffer` over all workers under the (declared) key `name`."""
    if not comm.wait(comm.push_pull(name, buffer), PATIENCE_S):
        raise StallError(f"the other workers did not take part in {name!r} within {PATIENCE_S:.0f} s")
    return buffer


def broadcast_object(comm: Comm, name: str, value: Any) -> Any:
    """Rank 0's `value` on every worker: anything torch.save and a weights-only torch.load can carry.

    Uses two keys, `<name>.length` and `<name>.bytes`; call it once per name.
    """
    packed = io.BytesIO()
    torch.save(value if comm.rank == 0 else None, packed)
    mine = torch.frombuffer(bytearray(packed.getvalue()), dtype=torch.uint8)
    comm.declare(f"{name}.length")
    comm.declare(f"{name}.bytes")
    length = torch.tensor([len(mine) if comm.rank == 0 else 0], dtype=torch.int64)
    total(comm, f"{name}.length", length)
    buffer = mine if comm.rank == 0 else torch.zeros(int(length.item()), dtype=torch.uint8)
    total(comm, f"{name}.bytes", buffer)
    return torch.load(io.BytesIO(buffer.numpy().tobytes()), weights_only=True)


def broadcast_training_state(
    comm: Comm, prefix: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, position: dict[str, Any]
) -> dict[str, Any]:
    """Parameters, buffers and optimizer state of rank 0 on every worker, bit for bit. Returns rank 0's `position`."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "position": position}
    received: dict[str, Any] = broadcast_object(comm, f"{prefix}.state", state)
    if comm.rank != 0:
        model.load_state_dict(received["model"])
        optimizer.load_state_dict(received["optimizer"])
    return dict(received["position"])
