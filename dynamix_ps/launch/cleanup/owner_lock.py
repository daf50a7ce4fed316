"""Whether the owner of a file still lives: it keeps the file locked, and the kernel unlocks it when the owner ends.

A process number does not say it: a process in another PID namespace or container, or on another machine with the same
folder, has a number that is free here, or that another process has.
"""

from __future__ import annotations

import fcntl
from contextlib import suppress


def hold(descriptor: int) -> None:
    """Lock an open file until this process and all processes that have inherited the descriptor have ended.

    A file system without locks leaves the file unlocked, and `owner_has_ended` is always False there.
    """
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def owner_has_ended(descriptor: int) -> bool:
    """Whether the file could be locked. If so, this process holds the lock now: only one of two askers gets True.

    On NFS only a descriptor that is open for writing can lock a file.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
