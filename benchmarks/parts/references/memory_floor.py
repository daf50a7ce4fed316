"""The floor of a sum on one host: the least that its memory must do, by memory_floor.c.

Each process has one buffer in a shared segment. All sum their slice of all buffers, in place, and sleep in futexes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_SOURCE = Path(__file__).with_suffix(".c")
_PAGE_BYTES = 4096  # as in the C file


def build(folder: Path) -> Path:
    """Compile the C file; returns the library. Raises SystemExit if the compiler refuses it or is missing."""
    library = folder / "memory_floor.so"
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit(f"{compiler} cannot be found on PATH. Next: apt-get install gcc (Debian, Ubuntu)") from None
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return library


class MemoryFloor:
    """One process's part of the sum. All processes map the file `segment`, which has `segment_bytes` zeros."""

    def __init__(self, library: Path, segment: Path, values: int, processes: int, rank: int) -> None:
        stride = _stride(values)
        with segment.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), segment_bytes(values, processes))
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        function = ctypes.CDLL(str(library)).sum_in_place
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint, ctypes.c_uint]
        function.restype = None
        self._function, self._arguments = function, (address, stride, values, processes, rank)
        self.buffer: NDArray[np.float32] = np.frombuffer(
            self._memory, np.float32, count=values, offset=_PAGE_BYTES + rank * stride
        )

    def sum(self) -> None:
        """Returns when the sum is in the buffers of all processes. All must call it."""
        self._function(*self._arguments)


def segment_bytes(values: int, processes: int) -> int:
    """Size of the segment for buffers of `values` floats."""
    return _PAGE_BYTES + processes * _stride(values)


def _stride(values: int) -> int:
    return -(-4 * values // _PAGE_BYTES) * _PAGE_BYTES
