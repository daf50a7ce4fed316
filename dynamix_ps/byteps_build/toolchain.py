"""What a build needs from this machine, checked before the build; and what a built wheel depends on."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from dynamix_ps.byteps_build.pip import GET_PIP, how_to_install, pip
from dynamix_ps.errors import BuildError
from dynamix_ps.packages import installed_version

BUILD_BYTES = 500_000_000  # space that a build needs in TMPDIR
CACHE_BYTES = 50_000_000  # source package, wheel and log
_DEBIAN = "(Debian, Ubuntu)"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Everything on this machine that a built wheel depends on."""

    python: str
    torch: str
    mxnet: str  # empty: not installed
    compiler: str
    cpu: str  # the build uses -march=native, but for other hosts

    def describe(self) -> dict[str, str]:
        return asdict(self)


class Tool(NamedTuple):
    """What a build needs of this machine, and where it was found; empty: it is missing, and `fix` says what has it."""

    name: str
    found: str
    fix: str


def tools() -> Iterator[Tool]:
    """All that a build needs, but for torch."""
    machine = platform.machine()
    yield Tool("x86-64", machine if machine == "x86_64" else "", f"on {machine} use comm: gloo, a ring without BytePS")
    try:
        command = pip()
        found = installed_version("pip") or command[1]
    except BuildError:
        found = ""
    yield Tool("pip", found, GET_PIP)
    for package in ("setuptools", "wheel"):
        yield Tool(package, installed_version(package) or "", how_to_install(package))
    compiler = os.environ.get("CXX", "g++")
    for tool, package in (compiler, "g++"), ("make", "make"), ("ar", "binutils"):
        yield Tool(tool, shutil.which(tool) or "", f"apt-get install {package} {_DEBIAN}")
    yield Tool("numa.h", _numa_header(compiler), f"apt-get install libnuma-dev {_DEBIAN}")
    header = Path(sysconfig.get_path("include"), "Python.h")
    yield Tool("Python.h", str(header) if header.is_file() else "", f"apt-get install python3-dev {_DEBIAN}")


def check() -> Toolchain:
    """Look for all that a build needs. Raises BuildError with a line for each thing that is missing."""
    torch = installed_version("torch") or ""
    missing = [tool for tool in (*tools(), Tool("torch", torch, how_to_install("torch"))) if not tool.found]
    if missing:
        lines = "".join(f"\n  {tool.name} is missing; {tool.fix}" for tool in missing)
        raise BuildError(f"BytePS cannot be built for the environment {sys.prefix}:{lines}")
    return Toolchain(
        python=f"{sys.implementation.cache_tag}-{platform.machine()}",
        torch=torch,
        mxnet=installed_version("mxnet") or "",
        compiler=_compiler_version(os.environ.get("CXX", "g++")),
        cpu=_cpu(),
    )


def check_free_space(folder: Path, needed_bytes: int) -> None:
    """Raises BuildError if `folder` has less than `needed_bytes` of free space."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise BuildError(
            f"not enough space in {folder}: {free / 1e6:.0f} MB free, a build needs {needed_bytes / 1e6:.0f} MB.\n"
            "Next: free some space, or point TMPDIR and DYNAMIX_CACHE to a larger disk."
        )


def _numa_header(compiler: str) -> str:
    """Where the compiler finds numa.h; without a compiler, where it usually is. Empty: nowhere."""
    if shutil.which(compiler) is None:
        return next((path for path in ("/usr/include/numa.h", "/usr/local/include/numa.h") if os.path.exists(path)), "")
    command = [compiler, "-x", "c++", "-M", "-"]
    done = subprocess.run(command, input="#include <numa.h>", capture_output=True, text=True, check=False)
    return next((word for word in done.stdout.split() if word.endswith("/numa.h")), "")


def _compiler_version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0] or compiler


def _cpu() -> str:
    """Model of the CPU and a digest of its instruction sets."""
    model, flags = platform.machine(), ""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                model = value.strip()
            if name.strip() in ("flags", "Features"):
                flags = " ".join(sorted(value.split()))
    return f"{model} {hashlib.sha256(flags.encode()).hexdigest()[:12]}"
