"""Where a worker of the soak is: its network, and its clock."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from types import ModuleType

HOME = "home"  # host of the coordinator, of the scheduler and of the launcher
NETWORK = "SOAK_NETWORK"  # variable of a worker: the network namespace of its host
HOUR_S = 3600.0
_CLONE_NEWNET = 0x40000000


def enter(network: str) -> None:
    """Go to this network namespace, before this process has any thread. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    place = os.open(network, os.O_RDONLY)
    try:
        if libc.setns(place, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {network}")
    finally:
        os.close(place)


def clock_file(folder: Path, rank: int) -> Path:
    """Where it is, the clock of the worker is an hour late."""
    return folder / f"clock-{rank}"


def turn_clock(back: bool) -> None:
    """Let `time.time` be an hour late, or right, for all that this project has imported.

    gRPC and others hand what they read to the kernel, whose clock is right: they must agree with it.
    """
    instead = _LATE if back else time
    for name, module in list(sys.modules.items()):
        if name.startswith(("dynamix_ps", "worker_hooks")) and getattr(module, "time", instead) is not instead:
            module.time = instead  # type: ignore[attr-defined]


_LATE = ModuleType("time")
vars(_LATE).update(vars(time), time=lambda: time.time() - HOUR_S)
