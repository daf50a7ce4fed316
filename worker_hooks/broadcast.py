"""What rank 0 has, on every worker, through sums: the others add zeros."""

from __future__ import annotations

import numpy as np

from dynamix_ps.comm import Comm


def broadcast(comm: Comm, name: str, data: bytes) -> bytes:
    """Rank 0's `data` on every worker; the others' is not looked at.

    Uses two keys, `<name>.length` and `<name>.bytes`; call it once per name.
    Raises StallError when the others do not take part.
    """
    comm.declare(f"{name}.length")
    comm.declare(f"{name}.bytes")
    mine = data if comm.rank == 0 else b""
    length = comm.total(f"{name}.length", np.array([len(mine)], dtype=np.int64))
    packed = np.frombuffer(bytearray(mine or int(length[0])), dtype=np.uint8)
    return comm.total(f"{name}.bytes", packed).tobytes()
