"""The facts of a host before a run: versions, code, memory, GPUs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

import dynamix_ps
from dynamix_ps.byteps_build.install import installed_info
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.host.code_files import TooManyFilesError, digest_of_all, python_files
from dynamix_ps.launch.host.own_address import own_address
from dynamix_ps.launch.host.reach import Listener
from dynamix_ps.launch.messages.agent_messages import Inspect, Inspected
from dynamix_ps.metrics.gpu import gpu_models
from dynamix_ps.run_record.manifest import versions

BYTEPS_SOURCES = "sources of byteps"  # among the versions: digest of what it was built from
_OURS = ("dynamix_ps", "server_hooks", "worker_hooks")


def inspected(question: Inspect, listener: Listener) -> Inspected:
    """The answer of this host. `listener` listens there from now on."""
    began_s = time.monotonic()
    problem, address = "", ""
    try:
        address = own_address(question.address, question.peers, question.host)
        listener.open(address, question.ports)
    except (EnvironmentNotReady, OSError) as error:
        problem = str(error)
    code, code_problem = code_of(Path(question.code))
    known = {name: version or "" for name, version in versions().items()}
    return Inspected(
        address=address,
        ports=listener.ports,
        problem=problem,
        cwd_problem=_cwd_problem(question.cwd),
        versions={**known, BYTEPS_SOURCES: installed_info().sources},
        package=package_digest(),
        code=code,
        code_problem=code_problem,
        memory_bytes=psutil.virtual_memory().available,
        gpus=gpu_models(),
        clock_s=time.time(),
        took_s=time.monotonic() - began_s,
    )


def package_digest() -> str:
    """Digest of all Python files of this package, as this process imports it."""
    root = Path(dynamix_ps.__file__).parents[1]
    return digest_of_all({
        f"{name}/{path}": digest for name in _OURS for path, digest in python_files(root / name).items()
    })  # fmt: skip


def code_of(folder: Path) -> tuple[dict[str, str], str]:
    """(digest of each Python file by its path, why there are none)"""
    try:
        return python_files(folder), ""
    except TooManyFilesError as error:
        return {}, str(error)


def _cwd_problem(cwd: str) -> str:
    try:
        os.scandir(cwd).close()
    except OSError as error:
        return f"has no folder {cwd} ({error.strerror})"
    return ""
