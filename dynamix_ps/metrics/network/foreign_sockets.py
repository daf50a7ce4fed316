"""Copies of another process's sockets, for the moment it takes to look at them."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

_PIDFD_GETFD = 438  # system call, the same number on all machines


def foreign_sockets(pid: int) -> Iterator[int]:
    """A descriptor of this process for each socket of that one, valid until the next is asked for.

    None where the process is gone, or where this one may not look at it (CAP_SYS_PTRACE).
    """
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
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
