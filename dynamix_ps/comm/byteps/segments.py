"""Memory that processes of one host share, without a name.

A segment is an anonymous file in memory (memfd_create), open in the process that created it. Another process opens it
as /proc/PID/fd/FD, which the kernel allows to the same user alone. Nothing appears in /dev/shm, whose size does not
matter, and the kernel frees the memory when the last process that uses it has ended, however it ended.

What travels between the processes is an announcement. Its fields tell whether both are on one host; a random number in
the segment proves that the file that was opened is the announced one.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import stat
import struct
import uuid
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.cgroups import available_memory_bytes
from dynamix_ps.errors import DynamixError

DATA_OFFSET_BYTES = 4096  # the page before holds the random number
_NONCE_BYTES = 16
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL  # nobody can cut memory off that others read
_LAYOUT = struct.Struct("<16s QQ III Q 16s")
ANNOUNCEMENT_BYTES = _LAYOUT.size


class SegmentError(DynamixError):
    """A segment cannot be created, or not be opened by this process."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """Where a segment is. Little-endian, without gaps, in the order of the fields."""

    boot: uuid.UUID  # of the running kernel: the same on one machine until it starts anew
    network_namespace: int
    pid_namespace: int
    user: int
    pid: int
    fd: int
    size_bytes: int  # of the data
    nonce: bytes

    def pack(self) -> bytes:
        """As ANNOUNCEMENT_BYTES bytes."""
        return _LAYOUT.pack(
            self.boot.bytes,
            self.network_namespace,
            self.pid_namespace,
            self.user,
            self.pid,
            self.fd,
            self.size_bytes,
            self.nonce,
        )

    @staticmethod
    def unpack(packed: bytes) -> Announcement:
        """The reverse of `pack`. Raises SegmentError for a wrong length."""
        if len(packed) != ANNOUNCEMENT_BYTES:
            raise SegmentError(f"announcement of a segment: got {len(packed)} bytes, expected {ANNOUNCEMENT_BYTES}")
        boot, *others = _LAYOUT.unpack(packed)
        return Announcement(uuid.UUID(bytes=boot), *others)


class Segment:
    """Zeroed memory that other processes of this host can open.

    A child of `fork` keeps the mapping; a program that this process starts does not get the descriptor.

    Attributes:
        data: (size_bytes,) uint8, the memory. Empty once the segment is closed.
        address: of its first byte, a multiple of 4096, for code that is not Python. 0 once the segment is closed.
        size_bytes: how much memory there is.
    """

    def __init__(self, file: FileIO, size_bytes: int, nonce: bytes, flags: int) -> None:
        """Map an open file. Use `create` or `open`."""
        mapping = mmap.mmap(file.fileno(), DATA_OFFSET_BYTES + size_bytes, mmap.MAP_SHARED | flags)
        self.size_bytes = size_bytes
        self.data: NDArray[np.uint8] = np.frombuffer(mapping, np.uint8, size_bytes, DATA_OFFSET_BYTES)
        self.address: int = self.data.ctypes.data
        self._file: FileIO | None = file
        self._nonce = nonce

    @classmethod
    def create(cls, size_bytes: int) -> Segment:
        """Reserve `size_bytes`. Takes about 1 ms per MB, which the first use of the memory then saves.

        Raises:
            SegmentError: there is not enough memory on this machine or in this control group, or the kernel refuses.
        """
        if size_bytes < 1:
            raise ValueError(f"Segment.create: got {size_bytes} bytes, expected at least 1")
        try:
            _check_available(DATA_OFFSET_BYTES + size_bytes)
            file = FileIO(os.memfd_create("dynamix", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+")
            try:
                os.fchmod(file.fileno(), 0o600)
                # Without this a lack of memory would show as SIGBUS at the first use.
                os.posix_fallocate(file.fileno(), 0, DATA_OFFSET_BYTES + size_bytes)
                fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
                nonce = secrets.token_bytes(_NONCE_BYTES)
                file.write(nonce)
                return cls(file, size_bytes, nonce, mmap.MAP_POPULATE)
            except OSError:
                file.close()
                raise
        except OSError as error:
            raise SegmentError(
                f"shared memory: cannot reserve {size_bytes} bytes: {error}; expected memfd_create, posix_fallocate "
                "and mmap to succeed.\nNext: look at the limits of this process (ulimit -a) and of its container"
            ) from error

    @classmethod
    def open(cls, announcement: bytes) -> Segment:
        """Open the segment that another process of this host has announced.

        Raises:
            SegmentError: this process is elsewhere, the kernel refuses, or the file is not the announced one.
        """
        told = Announcement.unpack(announcement)
        _check_place(told)
        path = f"/proc/{told.pid}/fd/{told.fd}"
        try:
            with FileIO(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "r+") as file:
                _check_file(file.fileno(), told, path)
                return cls(file, told.size_bytes, told.nonce, 0)
        except OSError as error:
            raise SegmentError(
                f"shared memory: cannot open {path}: {error.strerror}; expected the segment of a running process of "
                "this user.\nNext: check that the process runs and that /proc shows it to this one"
            ) from error

    def announcement(self) -> bytes:
        """What another process needs to open this segment: ANNOUNCEMENT_BYTES bytes.

        Raises ValueError if the segment is closed or of another process: `open` closes the descriptor.
        """
        if self._file is None or self._file.closed:
            raise ValueError(
                "announcement: only the process that created a segment announces it, and before it closes it"
            )
        here = _here()
        return Announcement(*here, os.getpid(), self._file.fileno(), self.size_bytes, self._nonce).pack()

    def close(self) -> None:
        """Give up the memory. It stays mapped in this process as long as arrays made from `data` exist."""
        if self._file is not None:
            self._file.close()
        self.data, self.address = np.empty(0, np.uint8), 0


def _check_available(wanted_bytes: int) -> None:
    """Raises SegmentError if memory is short: beyond the limit of a control group the kernel kills without an error."""
    if wanted_bytes > (left_bytes := available_memory_bytes()):
        raise SegmentError(
            f"shared memory: {wanted_bytes} bytes wanted, {left_bytes} are left on this machine or in this control "
            "group.\nNext: give the job more memory, or use a smaller model"
        )


def _here() -> tuple[uuid.UUID, int, int, int]:
    """What equals in all processes that can open each other's segments: boot, network and pid namespace, user.

    Raises SegmentError if /proc cannot be read.
    """
    try:
        boot = uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        network, pids = (os.stat(f"/proc/self/ns/{name}").st_ino for name in ("net", "pid"))
    except OSError as error:
        raise SegmentError(
            f"shared memory: cannot read {error.filename}: {error.strerror}; expected a mounted /proc.\n"
            "Next: mount /proc in this container"
        ) from error
    return boot, network, pids, os.geteuid()


def _check_place(told: Announcement) -> None:
    theirs = (told.boot, told.network_namespace, told.pid_namespace, told.user)
    names = ("boot", "network namespace", "pid namespace", "user")
    for name, their, own in zip(names, theirs, _here(), strict=True):
        if their != own:
            raise SegmentError(
                f"shared memory: process {told.pid} has {name} {their}, this process has {own}; expected the same.\n"
                "Next: start both on one machine, in one container and as one user, or let them use TCP"
            )


def _check_file(fd: int, told: Announcement, path: str) -> None:
    """Raises SegmentError if the open file is not the announced segment."""
    found = os.fstat(fd)
    size_bytes = found.st_size - DATA_OFFSET_BYTES
    if not stat.S_ISREG(found.st_mode) or size_bytes != told.size_bytes:
        problem = f"it has {size_bytes} bytes of data, expected {told.size_bytes}"
    elif os.pread(fd, _NONCE_BYTES, 0) != told.nonce:
        problem = "its random number is not the announced one"
    elif fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        problem = "its size is not sealed"
    else:
        return
    raise SegmentError(
        f"shared memory: {path} is not the announced segment: {problem}.\n"
        f"Next: check that process {told.pid} still runs and that /proc is of its pid namespace"
    )
