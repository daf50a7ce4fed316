"""Whether this process may load BPF programs, and the reason if it may not."""

from __future__ import annotations

import os
from pathlib import Path

from dynamix_ps.metrics.network.connection import SourceError

_CAPABILITIES = {"CAP_BPF": 39, "CAP_PERFMON": 38}  # include/uapi/linux/capability.h
_SYS_ADMIN = 21  # includes both
_WHOLE_RANGE = ["0", "0", "4294967295"]  # uid_map of the first user namespace

_AS_ROOT = "start the probe as root beforehand: sudo dynamix probe serve"
_CONTAINER = "start the container with --cap-add BPF --cap-add PERFMON --cap-add SYS_PTRACE"
_KUBERNETES = "dynamix probe manifest --privileged"


def check_permitted(proc: Path = Path("/proc")) -> None:
    """Raises SourceError if capabilities are missing. The check is cheap; call it before loading programs."""
    status = _status(proc)
    held = int(status.get("CapEff", "0"), 16)
    missing = [name for name, bit in _CAPABILITIES.items() if not held >> bit & 1]
    if missing and not held >> _SYS_ADMIN & 1:
        who = f"user {os.geteuid()}" if os.geteuid() else "this root (of a container)"
        raise SourceError(f"{who} lacks {' and '.join(missing)}", _CONTAINER if os.geteuid() == 0 else _AS_ROOT)
    if (proc / "self/uid_map").read_text().split() != _WHOLE_RANGE:
        reason = "capabilities of a user namespace (rootless container) do not count for BPF"
        raise SourceError(reason, f"{_AS_ROOT} (outside of it)")


def refused(proc: Path = Path("/proc"), lockdown: Path = Path("/sys/kernel/security/lockdown")) -> SourceError:
    """The reason for the kernel's EPERM when no capability is missing."""
    if "[confidentiality]" in _text(lockdown):
        reason = "the kernel is locked down (confidentiality), programs may not read its memory"
        return SourceError(reason, "boot with lockdown=integrity or without lockdown")
    if _status(proc).get("Seccomp") == "2":
        reason = "the kernel refuses to load a program; a filter of system calls (seccomp) is active"
        return SourceError(reason, f"{_CONTAINER} and --security-opt seccomp=unconfined; in Kubernetes: {_KUBERNETES}")
    return SourceError("the kernel refuses to load a program, for a policy of its own", _AS_ROOT)


def _status(proc: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in (proc / "self/status").read_text().splitlines())
    return {key: value.strip() for key, _, value in pairs}


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
