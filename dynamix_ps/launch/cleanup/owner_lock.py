"""Whether the owner of a file still lives: it keeps the file locked, and the kernel unlocks it when the owner ends.

Process numbers cannot tell. A process in another PID namespace or container, or on another machine, that shares the
folder has a number that belongs to nobody here, or to somebody else.
"""

from __future__ import annotations

import fcntl
from contextlib import suppress


def hold(descriptor: int) -> None:
    """Lock an open file until this process ends, and every process that has inherited the descriptor.

    Where the file system has no locks, the file stays unlocked, and `owner_has_ended` is false there as well.
    """
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def owner_has_ended(descriptor: int) -> bool:
    """Whether the file could be locked, which it then is: of two processes that ask, one alone is told so.

    On NFS only a descriptor that is open for writing can lock a file.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
