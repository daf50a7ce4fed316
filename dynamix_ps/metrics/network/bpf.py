"""What bcc does not offer for BPF programs: running one on demand, and reading its CPU time."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

from dynamix_ps.metrics.network.btf import NEWER_KERNEL
from dynamix_ps.metrics.network.connection import SourceError

_SYSCALLS = {"x86_64": 321, "aarch64": 280}  # bpf(2)
_PROG_TEST_RUN = 10


class _TestRun(ctypes.Structure):
    """`test` of union bpf_attr, include/uapi/linux/bpf.h."""

    _fields_ = (
        ("prog_fd", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("data_in", ctypes.c_uint64),
        ("data_out", ctypes.c_uint64),
        ("repeat", ctypes.c_uint32),
        ("duration", ctypes.c_uint32),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_uint64),
        ("ctx_out", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
    )


class OnDemand:
    """A raw tracepoint program that the caller runs with its own arguments (Linux 5.10 and newer)."""

    def __init__(self, program: int) -> None:
        """`program` is its file descriptor. Raises SourceError on a machine with an unknown system call number."""
        number = _SYSCALLS.get(platform.machine())
        if number is None:
            raise SourceError(f"programs cannot be run on demand on {platform.machine()}")
        self._number = number
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._arguments = (ctypes.c_uint64 * 2)()
        self._attributes = _TestRun(
            prog_fd=program, ctx_in=ctypes.addressof(self._arguments), ctx_size_in=ctypes.sizeof(self._arguments)
        )

    def __call__(self, first: int, second: int = 0) -> int:
        """Run the program and return its result. Raises SourceError."""
        self._arguments[:] = [first, second]
        failed: int = self._call(
            self._number, _PROG_TEST_RUN, ctypes.byref(self._attributes), ctypes.sizeof(self._attributes)
        )
        if failed:
            reason = os.strerror(ctypes.get_errno())
            raise SourceError(f"the kernel does not run a program on demand: {reason}", NEWER_KERNEL)
        return int(self._attributes.retval)


def program_fact(program: int, name: str) -> int:
    """A number from the kernel about a loaded program (prog_id, run_time_ns, ...); 0 if the kernel gives none."""
    for line in Path(f"/proc/self/fdinfo/{program}").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value)
    return 0
