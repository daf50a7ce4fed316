"""The checks of `dynamix doctor`, one line each. A check does not raise; it says what to do."""

from __future__ import annotations

import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dynamix_ps.byteps_build.cache import WheelCache
from dynamix_ps.byteps_build.cpu_level import LEVEL, missing_flags
from dynamix_ps.byteps_build.install import InstalledInfo, installed_info
from dynamix_ps.byteps_build.recipe import Recipe, plugins_of
from dynamix_ps.byteps_build.toolchain import check, tools
from dynamix_ps.cgroups import available_cores
from dynamix_ps.config import variables
from dynamix_ps.config.role_hosts import role_hosts
from dynamix_ps.config.schema import Cluster, Config, WorkerSection
from dynamix_ps.errors import DynamixError
from dynamix_ps.launch.emulation.cpu_quota import find_controller
from dynamix_ps.launch.preflight.check import Check, Status
from dynamix_ps.launch.preflight.launch_checks import check_command, check_machine
from dynamix_ps.launch.roles.authority import is_encrypted
from dynamix_ps.launch.roles.ports import choose_ports
from dynamix_ps.metrics.network.sources import check_levels
from dynamix_ps.packages import installed_version

_OLDEST_PYTHON = (3, 10)
_NEEDED = (
    "numpy",
    "pydantic",
    "pyyaml",
    "click",
    "rich",
    "psutil",
    "grpcio",
    "protobuf",
    "prometheus-client",
    "pyroute2",
)
_ROOMY_SHM_BYTES = 256 << 20  # twice the gradients of a large model, for several workers
_IMPORT_LIMIT_S = 60


def all_checks(config: Config | None) -> Iterator[Check]:
    """All checks, cheap ones first. With a config, also whether this cluster can be launched."""
    yield _python()
    yield from _packages()
    yield _torch()
    needed = config is not None and config.data_plane.has_servers
    byteps = installed_info()
    yield _cpu()
    yield from _tools(wanted=needed and not byteps.version)
    yield from _byteps(byteps, needed)
    yield _openssl(config)
    yield _ports(config)
    yield _shared_memory(Path("/dev/shm"))
    yield _temporary_folder()
    yield _cgroup(config)
    yield from _network(config)
    yield _data()
    if config is not None:
        yield _cluster(config)


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= _OLDEST_PYTHON:
        return Check("python", "ok", f"{version} ({sys.executable})")
    oldest = ".".join(map(str, _OLDEST_PYTHON))
    return Check("python", "blocker", f"{version} is too old", f"use Python {oldest} or newer")


def _packages() -> Iterator[Check]:
    for name in _NEEDED:
        version = installed_version(name)
        if version is None:
            yield Check(name, "blocker", "not installed", f"{sys.executable} -m pip install {name}")
        else:
            yield Check(name, "ok", version)


def _torch() -> Check:
    problem = _import_problem("torch") if installed_version("torch") else "not installed"
    if problem:
        return Check("torch", "blocker", problem, f"{sys.executable} -m pip install torch")
    return Check("torch", "ok", installed_version("torch") or "")


def _cpu() -> Check:
    machine = platform.machine()
    if machine != "x86_64":
        return Check("cpu", "warning", f"{machine}: a ring alone, which nobody has tried; no BytePS", "comm: gloo")
    if missing := missing_flags():
        fix = "dynamix build-byteps on this machine"
        return Check("cpu", "warning", f"no {LEVEL}, for which --wheel builds: it lacks {', '.join(missing)}", fix)
    return Check("cpu", "ok", LEVEL)


def _tools(wanted: bool) -> Iterator[Check]:
    for tool in tools():
        status: Status = "ok" if tool.found else "blocker" if wanted else "warning"
        missing = "missing" if wanted else "missing; only needed to build BytePS"
        yield Check(f"build: {tool.name}", status, tool.found or missing, tool.fix)


def _byteps(info: InstalledInfo, needed: bool) -> Iterator[Check]:
    status: Status = "blocker" if needed else "warning"
    fix = "dynamix build-byteps"
    if not info.version:
        yield Check("byteps", status, f"not installed{'' if needed else ' (comm: gloo works)'}; {_obtainable()}", fix)
    elif not info.ours:
        yield Check("byteps", status, f"{info.version} is installed, but not built by this project", fix)
    elif not info.current:
        yield Check("byteps", status, f"{info.version} was built by another version of this package", fix)
    else:
        yield Check("byteps", "ok", f"{info.version}, built {'with' if info.cuda else 'without'} CUDA")
        yield _plugin("torch", info, status)
        if installed_version("mxnet"):
            yield _plugin("mxnet", info, "warning")


def _obtainable() -> str:
    """What a build would take."""
    try:
        toolchain = check()
        recipe = Recipe("ours", toolchain, plugins_of("ours", toolchain, cuda=False))
        cached = WheelCache().find(recipe.key, lambda _: None)
    except (DynamixError, OSError):
        return "it cannot be built before what is missing is there"
    return "built already, in the cache" if cached else "it can be built, in one to two minutes"


def _plugin(framework: str, info: InstalledInfo, missing: Status) -> Check:
    name, fix = f"byteps {framework}", "dynamix build-byteps"
    if framework not in info.plugins:
        return Check(name, missing, f"built without the {framework} plugin", fix)
    problem = _import_problem(f"byteps.{framework}")
    return Check(name, missing, f"cannot be loaded: {problem}", fix) if problem else Check(name, "ok", "can be loaded")


def _openssl(config: Config | None) -> Check:
    found = shutil.which("openssl")
    if found:
        return Check("openssl", "ok", found)
    status: Status = "blocker" if config is not None and is_encrypted(config) else "warning"
    return Check("openssl", status, "not found; jobs on several hosts encrypt with it", "apt-get install openssl")


def _ports(config: Config | None) -> Check:
    cluster = config.cluster if config and not config.cluster.hosts else Cluster(workers=(WorkerSection(),))
    try:
        ports = choose_ports(cluster, random.Random())
    except DynamixError as error:
        return Check("ports", "blocker", str(error), "free the port, or let one be picked with port: 0")
    return Check("ports", "ok", f"free on {cluster.host}: {ports[0]}, {ports[1]}")


def _shared_memory(folder: Path) -> Check:
    try:
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check(str(folder), "blocker", f"cannot be written: {error.strerror}", f"mount a tmpfs on {folder}")
    if free < _ROOMY_SHM_BYTES:
        fix = "containers: start with a larger --shm-size"
        return Check(str(folder), "warning", f"only {free >> 20} MB free; large models need more", fix)
    return Check(str(folder), "ok", f"{free >> 20} MB free")


def _temporary_folder() -> Check:
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check("temporary folder", "ok", folder)
    except OSError as error:
        return Check("temporary folder", "blocker", f"{folder}: {error.strerror}", "set TMPDIR to a writable folder")


def _cgroup(config: Config | None) -> Check:
    controller = find_controller()
    cores = f"{available_cores():g} cores usable"
    if controller.usable:
        return Check("cpu quota", "ok", f"cgroup v{controller.version} at {controller.parent}, {cores}")
    demanded = config is not None and config.emulation == "cgroup"
    status: Status = "blocker" if demanded else "warning"
    detail = f"not permitted ({controller.problem}), {cores}; emulated speeds use a slow-down in the hook instead"
    return Check("cpu quota", status, detail, "run as root or in a delegated cgroup")


def _network(config: Config | None) -> Iterator[Check]:
    demanded = config.metrics.network if config else "auto"
    for level in check_levels():
        status: Status = "ok" if level.usable else "blocker" if level.name == demanded else "warning"
        yield Check(f"network {level.name}", status, level.reason, level.fix)


def _data() -> Check:
    folders = [
        Path(folder)
        for folder in (variables.get(variables.DATA), os.path.join(variables.cache_dir(), "data"))
        if folder
    ]
    found = [file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir()) if file.is_file()]
    data = [file for file in found if file.suffix in (".npz", ".gz")]
    if data:
        return Check("data", "ok", ", ".join(map(str, data)))
    detail = f"no data set in {', '.join(map(str, folders))}; the workloads download theirs"
    return Check(
        "data", "warning", detail, f"without a network: put fashion_mnist.npz into a folder and set {variables.DATA}"
    )


def _cluster(config: Config) -> Check:
    try:
        if config.command:
            check_command(config.command)
        check_machine(config)
    except DynamixError as error:
        return Check("cluster file", "blocker", str(error), "correct the cluster file")
    roles = f"{len(config.cluster.workers)} worker(s)"
    if config.data_plane.has_servers:
        roles += f", {len(role_hosts(config.cluster).servers)} server(s)"
    later = "" if config.command else "; no command: `dynamix launch` takes it behind `--`"
    return Check("cluster file", "ok", f"{config.name}: {roles}, policy {config.policy.name}{later}")


def _import_problem(module: str) -> str:
    """Why a module cannot be imported; empty if it can. Another process tries, because an import may crash or hang."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            cwd="/",  # Python imports from the folder in which it is started
            capture_output=True,
            text=True,
            timeout=_IMPORT_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its import did not end within {_IMPORT_LIMIT_S} s"
    lines = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else lines[-1] if lines else f"its import ended with code {done.returncode}"
