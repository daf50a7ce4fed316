"""Which role a process plays, read from /proc by the probe."""

from __future__ import annotations

import re
from pathlib import Path

from dynamix_ps.config import variables
from dynamix_ps.metrics.network.probe_protocol import WatchedProcess

_LONGEST = 64  # as the protocol has it


class Namespaces:
    """Names of network namespaces by inode, as `ip netns` knows them."""

    def __init__(self, folder: Path = Path("/run/netns")) -> None:
        self._folder = folder
        self._own = _inode(Path("/proc/self/ns/net"))

    def name(self, pid: int) -> str:
        """Of the namespace a process is in; empty for the own one, and `net:[inode]` for one without a name."""
        inode = _inode(Path(f"/proc/{pid}/ns/net"))
        if inode in (0, self._own):
            return ""
        named = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        return next((_harmless(file.name) for file in named if _inode(file) == inode), f"net:[{inode}]")


def read_owner(pid: int, uid: int, namespaces: Namespaces) -> WatchedProcess:
    """What the environment of a process says about it; nothing where the process is not of this user any more."""
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
    """`worker-0`, from what the launcher says or else from the variables of BytePS; empty for no role."""
    role = environ.get("DMLC_ROLE", "")
    number = environ.get("DMLC_WORKER_ID", "")
    return _harmless(environ.get(variables.ROLE_NAME) or (f"{role}-{number}" if role == "worker" and number else role))


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _harmless(text: str) -> str:
    """Users choose these texts, and others see them on their terminals."""
    return re.sub(r"[^A-Za-z0-9_.:-]", "?", text)[:_LONGEST]
