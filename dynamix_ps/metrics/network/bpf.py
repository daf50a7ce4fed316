"""The two things about BPF programs that bcc does not offer: running one on demand, and what it has cost."""

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
    """A raw tracepoint program that is run with arguments of one's own (Linux 5.10 and newer)."""

    def __init__(self, program: int) -> None:
        """`program` is its file descriptor. Raises SourceError on a machine whose system call is not known."""
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
        """What the program returns. Raises SourceError."""
        self._arguments[:] = [first, second]
        failed: int = self._call(
            self._number, _PROG_TEST_RUN, ctypes.byref(self._attributes), ctypes.sizeof(self._attributes)
        )
        if failed:
            reason = os.strerror(ctypes.get_errno())
            raise SourceError(f"the kernel does not run a program on demand: {reason}", NEWER_KERNEL)
        return int(self._attributes.retval)


def program_fact(program: int, name: str) -> int:
    """A number the kernel tells about a loaded program (prog_id, run_time_ns, ...); 0 where it does not tell it."""
    for line in Path(f"/proc/self/fdinfo/{program}").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value)
    return 0
