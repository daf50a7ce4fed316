"""Memory that an iteration frees stays with the process, for the next iteration.

glibc gives the end of its heap back to the kernel when more than some megabytes of it are free. Training frees its
activations in every iteration and allocates them again, so each page is cleared and mapped anew: a quarter of the time
of a small CNN.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_KEPT_BYTES = 512 << 20
_MAPPED_BYTES = 32 << 20  # a block of this size is mapped by itself, as where glibc chooses: no limit of it is higher


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Have glibc keep up to 512 MiB at the end of its heap.

    Returns false, and changes nothing, with another C library, or where the environment sets up malloc.
    """
    is_set_up = any(name.startswith("MALLOC_") for name in environ) or "malloc" in environ.get("GLIBC_TUNABLES", "")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if is_set_up or mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))
