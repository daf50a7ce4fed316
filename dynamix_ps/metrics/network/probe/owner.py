"""The role of a process, which the probe reads from /proc."""

from __future__ import annotations

import re
from pathlib import Path

from dynamix_ps.config import variables
from dynamix_ps.metrics.network.probe.protocol import WatchedProcess

_LONGEST = 64  # characters, as in the protocol


class Namespaces:
    """Names of network namespaces by inode, as `ip netns` lists them."""

    def __init__(self, folder: Path = Path("/run/netns")) -> None:
        self._folder = folder
        self._own = _inode(Path("/proc/self/ns/net"))

    def name(self, pid: int) -> str:
        """Name of a process's namespace; empty if it is the probe's, `net:[inode]` if it has no name."""
        inode = _inode(Path(f"/proc/{pid}/ns/net"))
        if inode in (0, self._own):
            return ""
        named = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        return next((_harmless(file.name) for file in named if _inode(file) == inode), f"net:[{inode}]")


def read_owner(pid: int, uid: int, namespaces: Namespaces) -> WatchedProcess:
    """Role and run of a process, from its environment; empty if the process no longer belongs to this user."""
    try:
        folder = Path(f"/proc/{pid}")
        if folder.stat().st_uid != uid:
            return WatchedProcess(pid, "", "", "")
        lines = (folder / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return WatchedProcess(pid, "", "", "")
    environ = dict(line.decode(errors="replace").partition("=")[::2] for line in lines)
    return WatchedProcess(pid, role_name(environ), _harmless(environ.get(variables.RUN_ID, "")), namespaces.name(pid))


def role_name(environ: dict[str, str]) -> str:
    """For example `worker-0`, from the launcher's variables, else from those of BytePS; empty without a role."""
    role = environ.get("DMLC_ROLE", "")
    number = environ.get("DMLC_WORKER_ID", "")
    return _harmless(environ.get(variables.ROLE_NAME) or (f"{role}-{number}" if role == "worker" and number else role))


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _harmless(text: str) -> str:
    """The text without control characters: users choose it, and other users see it on their terminals."""
    return re.sub(r"[^A-Za-z0-9_.:-]", "?", text)[:_LONGEST]
