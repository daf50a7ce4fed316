"""manifest.json of a run: versions, command line, seed and machine, enough to repeat the run."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil

from dynamix_ps.config.schema import Config
from dynamix_ps.packages import installed_version
from dynamix_ps.run_record.run_folder import RunFolder, write_private_if_secret

_PACKAGES = ("torch", "mxnet", "numpy", "byteps", "grpcio", "protobuf", "pydantic")
_OWN_PACKAGE = "dynamix-ps"


def write_manifest(folder: RunFolder, config: Config, argv: Sequence[str]) -> dict[str, Any]:
    """Write manifest.json and return its content. Unknown values are null; finding them imports no package."""
    manifest = {
        "run": folder.path.name,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "argv": list(argv),
        "command": list(config.command),
        "seed": config.seed,
        "policy": config.policy.name,
        "mode": config.mode,
        "target_accuracy": config.target_accuracy,
        "versions": versions(),
        "git": _git(Path(__file__).parent),
        "machine": machine(),
    }
    write_private_if_secret(folder.manifest_file, json.dumps(manifest, indent=2) + "\n", config)
    return manifest


def versions() -> dict[str, str | None]:
    """Installed versions by distribution name; null where a distribution is not installed."""
    found = {name: installed_version(name) for name in (_OWN_PACKAGE, *_PACKAGES)}
    return {"python": platform.python_version(), **found}


def machine() -> dict[str, Any]:
    """Host, cores (all, and those this process may use), CPU model, memory in bytes, kernel."""
    return {
        "host": socket.gethostname(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "cpu_model": _cpu_model(Path("/proc/cpuinfo")),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "system": platform.platform(),
    }


def _cpu_model(cpuinfo: Path) -> str | None:
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _git(where: Path) -> dict[str, Any] | None:
    """Commit of the checkout this package runs from, and whether it has changes; null outside a checkout."""
    commit = _git_output(where, "rev-parse", "HEAD")
    if commit is None:
        return None
    status = _git_output(where, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return {"commit": commit, "changed": None if status is None else bool(status)}


def _git_output(where: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(where), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
