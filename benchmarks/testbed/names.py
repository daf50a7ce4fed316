"""Names of the namespaces of a bed. They contain the owner, so that other processes recognise leftover beds.

The owner's pid counts in the owner's PID namespace alone, so a bed of another PID namespace is nobody's leftover here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

NAMESPACES = Path("/run/netns")
SWITCH = "switch"
_HOST = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_NAMESPACE = re.compile(r"(dxbed\.(\d+)\.(\d+)\.(\d+)\.\d+)\.[a-z0-9-]+")
_beds = count()


def new_bed() -> str:
    """The prefix of the names of a new bed: the owner's PID namespace, pid and start time, and a number."""
    return f"dxbed.{_pid_namespace()}.{os.getpid()}.{start_of(os.getpid())}.{next(_beds)}"


def check_host(name: str) -> None:
    """Raises ValueError for an invalid name of a host."""
    if not _HOST.fullmatch(name) or name == SWITCH:
        raise ValueError(f"host {name!r}: expected small letters, digits and '-', at most 32, and not {SWITCH!r}")


def namespace(bed: str, host: str) -> str:
    return f"{bed}.{host}"


def namespaces_of(bed: str) -> list[str]:
    return [name for found, name in _all() if found[1] == bed]


def left_over() -> list[str]:
    """Beds on this machine whose owner, of this PID namespace, no longer runs."""
    here = [found for found, _ in _all() if int(found[2]) == _pid_namespace()]
    return sorted({found[1] for found in here if start_of(int(found[3])) != found[4]})


def _all() -> Iterator[tuple[re.Match[str], str]]:
    if NAMESPACES.is_dir():
        for file in NAMESPACES.iterdir():
            if found := _NAMESPACE.fullmatch(file.name):
                yield found, file.name


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def start_of(pid: int) -> str:
    """Start time of a process, in clock ticks since boot; empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]
