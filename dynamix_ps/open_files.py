"""The limit on open files, which is often 1024 unless a process raises it."""

from __future__ import annotations

import os
import resource


def raise_open_files(wanted: int) -> int:
    """Raise the limit to `wanted` as far as permitted; never lowers it. Returns the limit that holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


class SpareFiles:
    """Descriptors that a process holds for the moment in which no others are left.

    Args:
        count: what the process may need at once then.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._held = _opened(count)
        if len(self._held) < count:
            self.close()

    def give_up_if_needed(self) -> bool:
        """Free them if fewer than `count` others can be opened. Returns whether this call did so."""
        if not self._held:
            return False
        free = _opened(self._count)
        for descriptor in free:
            os.close(descriptor)
        if len(free) == self._count:
            return False
        self.close()
        return True

    def close(self) -> None:
        """Free them. May be called twice."""
        while self._held:
            os.close(self._held.pop())


def _opened(count: int) -> list[int]:
    """As many descriptors as can be had, at most `count`."""
    found: list[int] = []
    try:
        for _ in range(count):
            found.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        pass
    return found
