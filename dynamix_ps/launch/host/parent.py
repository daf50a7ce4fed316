"""A process that ends when its parent dies."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def tie_to_parent(parent_pid: int, signal_number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent dies. Call it in the child before exec.

    The setting survives exec. If the parent is gone already, the signal comes at once.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal_number)
