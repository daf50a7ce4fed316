"""Lets an allocation fail where Linux would end the process.

Where memory runs out on a machine or in a control group, no allocation fails: the kernel kills a process. A limit on
the process's own data makes the allocation fail instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
from collections.abc import Iterator
from pathlib import Path

from dynamix_ps.cgroups import OWN_PROC, available_memory_bytes

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of mallopt(3)
LARGE_BYTES = 1 << 20  # pages of allocations from this size on go back to the kernel when they are freed (ours)
KEPT_FREE = 0.1  # of what is left, for the loss, other threads and other processes (chosen by us)


@contextlib.contextmanager
def memory_limited_to_what_is_left(proc: Path = OWN_PROC) -> Iterator[None]:
    """Within it an allocation beyond the memory that is left fails, as an error of the one who allocates."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _data_bytes(proc) + int((1 - KEPT_FREE) * available_memory_bytes(proc))
    present = [each for each in (soft, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([limit, *present]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def give_back_freed_memory() -> None:
    """Give memory that was freed back to the kernel, and from now on at once where it is large.

    The C library keeps it otherwise, and what it keeps is missing where the kernel limits memory.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):  # glibc
        library.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        library.malloc_trim(0)


def _data_bytes(proc: Path) -> int:
    """Private memory of this process, as RLIMIT_DATA counts it."""
    words = (proc / "status").read_text().split()
    return 1024 * int(words[words.index("VmData:") + 1])
