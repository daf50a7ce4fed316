"""The limit on open files, which is often 1024 unless a process raises it."""

from __future__ import annotations

import resource


def raise_open_files(wanted: int) -> int:
    """Raise the limit to `wanted` as far as permitted; never lowers it. Returns the limit that holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
