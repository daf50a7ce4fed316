"""What a build needs from this machine, checked before the build; and what a built wheel depends on."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path

from dynamix_ps.byteps_build.pip import pip
from dynamix_ps.errors import BuildError
from dynamix_ps.packages import installed_version

BUILD_BYTES = 500_000_000  # space that a build needs in TMPDIR
CACHE_BYTES = 50_000_000  # source package, wheel and log


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Everything on this machine that a built wheel depends on."""

    python: str
    torch: str
    mxnet: str  # empty: not installed
    compiler: str
    cpu: str  # the build uses -march=native

    def describe(self) -> dict[str, str]:
        return asdict(self)


def check() -> Toolchain:
    """Look for pip, compiler, headers and Python packages. Raises BuildError with what to install."""
    pip()
    compiler = os.environ.get("CXX", "g++")
    missing = [tool for tool in (compiler, "make", "ar") if shutil.which(tool) is None]
    if missing:
        raise BuildError(
            f"BytePS must be compiled, but {' and '.join(missing)} cannot be found on PATH.\n"
            "Next: apt-get install g++ make (Debian, Ubuntu)"
        )
    if not _compiles(compiler, "#include <numa.h>"):
        raise BuildError(
            "BytePS needs libnuma, but its header numa.h cannot be found.\n"
            "Next: apt-get install libnuma-dev (Debian, Ubuntu)"
        )
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").is_file():
        raise BuildError(
            f"the headers of this Python are not installed: there is no Python.h in {include}.\n"
            "Next: apt-get install python3-dev (Debian, Ubuntu)"
        )
    return Toolchain(
        python=f"{sys.implementation.cache_tag}-{platform.machine()}",
        torch=_package("torch", "pip install torch"),
        mxnet=installed_version("mxnet") or "",
        compiler=_compiler_version(compiler),
        cpu=_cpu(),
    )


def check_build_packages() -> None:
    """Check the packages that a build without isolation imports. Raises BuildError."""
    for package in ("setuptools", "wheel"):
        _package(package, f"{sys.executable} -m pip install {package}")


def check_free_space(folder: Path, needed_bytes: int) -> None:
    """Raises BuildError if `folder` has less than `needed_bytes` of free space."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise BuildError(
            f"not enough space in {folder}: {free / 1e6:.0f} MB free, a build needs {needed_bytes / 1e6:.0f} MB.\n"
            "Next: free some space, or point TMPDIR and DYNAMIX_CACHE to a larger disk."
        )


def _compiles(compiler: str, source: str) -> bool:
    done = subprocess.run(
        [compiler, "-x", "c++", "-E", "-", "-o", os.devnull], input=source, capture_output=True, text=True, check=False
    )
    return done.returncode == 0


def _compiler_version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0] or compiler


def _package(name: str, next_step: str) -> str:
    version = installed_version(name)
    if version is None:
        raise BuildError(
            f"the Python package {name} is not installed in {sys.prefix}, and BytePS is built against it.\n"
            f"Next: {next_step}"
        )
    return version


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
