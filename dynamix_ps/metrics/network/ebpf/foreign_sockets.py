"""Short-lived copies of another process's sockets."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

_PIDFD_GETFD = 438  # system call, the same number on all machines


def foreign_sockets(pid: int) -> Iterator[int]:
    """A descriptor for each socket of process `pid`, valid until the next one is requested.

    Empty if the process has ended, or if this process may not inspect it (CAP_SYS_PTRACE).
    """
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed in the meantime
                if os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                    yield from _duplicate(process, int(name))
    except OSError:
        return
    finally:
        os.close(process)


def _duplicate(process: int, number: int) -> Iterator[int]:
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, number, 0)
    if descriptor >= 0:
        try:
            yield descriptor
        finally:
            os.close(descriptor)
