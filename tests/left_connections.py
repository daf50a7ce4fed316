"""TCP connections and listeners of this process, for a test that must close its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

import psutil


def sockets() -> frozenset[str]:
    """All sockets, by the kernel's names for them."""
    return frozenset(name for name in map(_name, os.listdir("/proc/self/fd")) if name.startswith("socket:"))


def tcp_among(names: Collection[str]) -> list[str]:
    """What is TCP among these, and not closed: both ends and the state of each."""
    found = psutil.Process().net_connections("tcp") if names else []
    return [
        f"{one.laddr} {one.raddr} {one.status}" for one in found if one.status != "CLOSE" and _name(one.fd) in names
    ]


def _name(descriptor: str | int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}")
    return ""
