"""The system call bpf(2): maps, functions in the kernel, their attachment to raw tracepoints, running one on demand.

All are file descriptors: the kernel frees what no process holds any more. Layouts are those of union bpf_attr in
include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
from pathlib import Path
from typing import Generic, TypeVar

from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.ebpf.btf import NEWER_KERNEL
from dynamix_ps.metrics.network.ebpf.program import MapLayout

Key = TypeVar("Key", bound="ctypes._CData")
Value = TypeVar("Value", bound="ctypes._CData")

_SYSCALLS = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _LOOKUP, _UPDATE, _DELETE, _NEXT_KEY, _PROG_LOAD, _PROG_TEST_RUN, _TRACEPOINT_OPEN = *range(6), 10, 17
_RAW_TRACEPOINT = 17  # type of a program
_LICENSE = ctypes.create_string_buffer(b"GPL")  # which the kernel wants for reading its memory
_LOG_BYTES = 1 << 20
_INSTRUCTION_BYTES = 8

_u32, _u64 = ctypes.c_uint32, ctypes.c_uint64


class _Create(ctypes.Structure):
    _fields_ = (("kind", _u32), ("key_bytes", _u32), ("value_bytes", _u32), ("entries", _u32), ("flags", _u32))


class _Element(ctypes.Structure):
    _fields_ = (("map", _u32), ("key", _u64), ("value_or_next_key", _u64), ("flags", _u64))


class _Load(ctypes.Structure):
    _fields_ = (
        ("kind", _u32),
        ("instructions", _u32),
        ("code", _u64),
        ("license", _u64),
        ("log_level", _u32),
        ("log_bytes", _u32),
        ("log", _u64),
        ("kernel_version", _u32),
        ("flags", _u32),
        ("name", ctypes.c_char * 16),
    )


class _OpenTracepoint(ctypes.Structure):
    _fields_ = (("name", _u64), ("function", _u32))


class _TestRun(ctypes.Structure):
    _fields_ = (
        ("prog_fd", _u32),
        ("retval", _u32),
        ("data_size_in", _u32),
        ("data_size_out", _u32),
        ("data_in", _u64),
        ("data_out", _u64),
        ("repeat", _u32),
        ("duration", _u32),
        ("ctx_size_in", _u32),
        ("ctx_size_out", _u32),
        ("ctx_in", _u64),
        ("ctx_out", _u64),
        ("flags", _u32),
        ("cpu", _u32),
        ("batch_size", _u32),
        ("padding", _u32),
    )


class _Call:
    """The system call with one command and one set of attributes, which may be called often."""

    def __init__(self, command: int, attributes: ctypes.Structure) -> None:
        """Raises SourceError on a machine with an unknown system call number."""
        number = _SYSCALLS.get(platform.machine())
        if number is None:
            raise SourceError(f"eBPF on {platform.machine()} is unknown to this program")
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._arguments = (number, command, ctypes.byref(attributes), ctypes.sizeof(attributes))

    def __call__(self) -> int:
        """Raises OSError."""
        result: int = self._syscall(*self._arguments)
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result


class Map(Generic[Key, Value]):
    """A map in the kernel, for keys and values of these ctypes. Raises OSError if the kernel refuses it."""

    def __init__(self, layout: MapLayout, key: type[Key], value: type[Value]) -> None:
        if (layout.key_bytes, layout.value_bytes) != (ctypes.sizeof(key), ctypes.sizeof(value)):
            raise ValueError(f"the map has {layout}, not {ctypes.sizeof(key)} and {ctypes.sizeof(value)} bytes")
        self._key, self._value = key(), value()
        self._next_key = key()
        fields = (layout.kind, layout.key_bytes, layout.value_bytes, layout.entries, layout.flags)
        self.descriptor = _Call(_MAP_CREATE, _Create(*fields))()
        at_key, at_value = ctypes.addressof(self._key), ctypes.addressof(self._value)
        self._element = _Element(self.descriptor, at_key, at_value, 0)
        self._lookup, self._update = _Call(_LOOKUP, self._element), _Call(_UPDATE, self._element)
        self._delete = _Call(_DELETE, _Element(self.descriptor, at_key))
        self._step = _Element(self.descriptor, 0, ctypes.addressof(self._next_key), 0)
        self._next = _Call(_NEXT_KEY, self._step)

    def __getitem__(self, key: Key) -> Value:
        """A copy. Raises KeyError."""
        _copy(key, self._key)
        try:
            self._lookup()
        except FileNotFoundError:
            raise KeyError(key) from None
        return _copied(self._value)

    def __setitem__(self, key: Key, value: Value) -> None:
        """Raises OSError, for example if the map is full."""
        _copy(key, self._key)
        _copy(value, self._value)
        self._update()

    def discard(self, key: Key) -> None:
        """Remove this entry, if it is there."""
        _copy(key, self._key)
        with contextlib.suppress(FileNotFoundError):
            self._delete()

    def all_keys(self) -> list[Key]:
        """Those that are there all the time; of others each may be missing."""
        found: dict[bytes, Key] = {}
        self._step.key = 0  # the first one comes next
        with contextlib.suppress(FileNotFoundError):  # none comes next
            while True:
                self._next()  # begins anew if the one before is gone
                found[bytes(self._next_key)] = _copied(self._next_key)
                _copy(self._next_key, self._key)
                self._step.key = ctypes.addressof(self._key)
        return list(found.values())

    def close(self) -> None:
        os.close(self.descriptor)


class OnDemand:
    """A raw tracepoint function that the caller runs with its own arguments (Linux 5.10 and newer)."""

    def __init__(self, function: int) -> None:
        """`function` is its file descriptor."""
        self._arguments = (ctypes.c_uint64 * 2)()
        at_arguments, size = ctypes.addressof(self._arguments), ctypes.sizeof(self._arguments)
        self._attributes = _TestRun(prog_fd=function, ctx_in=at_arguments, ctx_size_in=size)
        self._call = _Call(_PROG_TEST_RUN, self._attributes)

    def __call__(self, first: int, second: int = 0) -> int:
        """Run the function and return its result. Raises SourceError."""
        self._arguments[:] = [first, second]
        try:
            self._call()
        except OSError as error:
            raise SourceError(f"the kernel does not run a program on demand: {error.strerror}", NEWER_KERNEL) from None
        return int(self._attributes.retval)


def load_function(name: str, code: bytes) -> int:
    """Give instructions to the kernel, which verifies them; returns a descriptor.

    Raises OSError; its text has the line of the verifier that tells why.
    """
    instructions, log = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(_LOG_BYTES)
    load = _Load(
        kind=_RAW_TRACEPOINT,
        instructions=len(code) // _INSTRUCTION_BYTES,
        code=ctypes.addressof(instructions),
        license=ctypes.addressof(_LICENSE),
        name=name.encode(),
    )
    try:
        return _Call(_PROG_LOAD, load)()
    except OSError as error:
        load.log_level, load.log, load.log_bytes = 1, ctypes.addressof(log), _LOG_BYTES
        with contextlib.suppress(OSError):
            return _Call(_PROG_LOAD, load)()
        raise OSError(error.errno, f"{error.strerror}{_verdict(log.value.decode(errors='replace'))}") from None


def attach(function: int, tracepoint: str) -> int:
    """Run a function at every event of a raw tracepoint, until the descriptor that this returns is closed.

    Raises OSError.
    """
    name = ctypes.create_string_buffer(tracepoint.encode())
    return _Call(_TRACEPOINT_OPEN, _OpenTracepoint(ctypes.addressof(name), function))()


def allow_locked_memory() -> None:
    """Before Linux 5.11 maps count as locked memory."""
    with contextlib.suppress(OSError, ValueError):  # then the limit holds, which newer kernels do not ask for
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def function_fact(function: int, name: str) -> int:
    """A number from the kernel about a loaded function (prog_id, run_time_ns, ...) or map; 0 if there is none."""
    for line in Path(f"/proc/self/fdinfo/{function}").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value, 0)
    return 0


def _verdict(log: str) -> str:
    """The last words of the verifier but its statistics, in parentheses."""
    said = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith("processed ")]
    return f" ({said[-1]})" if said else ""


def _copy(source: ctypes._CData, target: ctypes._CData) -> None:
    ctypes.memmove(ctypes.addressof(target), ctypes.addressof(source), ctypes.sizeof(target))


def _copied(value: Value) -> Value:
    copy = type(value)()
    _copy(value, copy)
    return copy
