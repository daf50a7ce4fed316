"""Removes test beds: their processes and their namespaces with all interfaces."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress

from benchmarks.testbed import names
from benchmarks.testbed.commands import BedError, run

_PATIENCE_S = 5.0


def remove_left_over() -> list[str]:
    """Remove the beds whose owner ended without removing them (kill -9); returns their names. Raises BedError."""
    gone = names.left_over()
    for bed in gone:
        remove(bed)
    return gone


def remove(bed: str, inodes: Collection[int] = ()) -> None:
    """End all processes in a bed's namespaces, and in those of `inodes`, and delete the namespaces.

    Raises BedError if a process does not end. May be called twice.
    """
    namespaces = names.namespaces_of(bed)
    end_processes({*inodes, *(inode_of(name) for name in namespaces)})
    for name in namespaces:
        try:
            run("ip", "netns", "delete", name)
        except BedError:
            if (names.NAMESPACES / name).exists():  # else another process has deleted it
                raise


def inode_of(namespace: str) -> int:
    """The kernel's identifier of a network namespace; 0 if there is none of that name."""
    try:
        return os.stat(names.NAMESPACES / namespace).st_ino
    except FileNotFoundError:
        return 0


def end_processes(inodes: Collection[int]) -> None:
    """Kill all processes in these network namespaces and wait until they are gone. Raises BedError if one stays."""
    deadline = time.monotonic() + _PATIENCE_S
    while left := list(_processes_in(inodes)):
        if time.monotonic() > deadline:
            raise BedError(f"processes {left} of a test bed do not end")
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _processes_in(inodes: Collection[int]) -> Iterator[int]:
    """Processes in these network namespaces, without zombies, which have no namespace any more."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with suppress(OSError):
                if os.stat(f"/proc/{entry}/ns/net").st_ino in inodes:
                    yield int(entry)
