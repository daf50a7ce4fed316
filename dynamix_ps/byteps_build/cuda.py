"""Where the CUDA toolkit and NCCL are, for builds with --cuda."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from dynamix_ps.errors import BuildError


def find_cuda() -> Path:
    """Home of the CUDA toolkit: $BYTEPS_CUDA_HOME, $CUDA_HOME or /usr/local/cuda. Raises BuildError."""
    for name in ("BYTEPS_CUDA_HOME", "CUDA_HOME"):
        if value := os.environ.get(name):
            return _with_header(Path(value), "cuda_runtime.h", f"${name}")
    return _with_header(Path("/usr/local/cuda"), "cuda_runtime.h", "the default; set CUDA_HOME")


def find_nccl() -> Path:
    """Home of NCCL: $BYTEPS_NCCL_HOME, the NCCL of torch, or /usr. Raises BuildError."""
    if value := os.environ.get("BYTEPS_NCCL_HOME"):
        return _with_library(_with_header(Path(value), "nccl.h", "$BYTEPS_NCCL_HOME"))
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        home = Path(folder) / "nccl"
        if (home / "include" / "nccl.h").is_file():
            return _with_library(home)
    return _with_library(_with_header(Path("/usr"), "nccl.h", "the default; set BYTEPS_NCCL_HOME"))


def _with_header(home: Path, header: str, origin: str) -> Path:
    if (home / "include" / header).is_file():
        return home
    raise BuildError(
        f"--cuda needs {header}, but there is no {home / 'include' / header} ({origin}).\n"
        "Next: install the CUDA toolkit and NCCL, set CUDA_HOME and BYTEPS_NCCL_HOME, or build without --cuda."
    )


def _with_library(home: Path) -> Path:
    if any(home.glob("lib*/libnccl.so*")):
        return home
    raise BuildError(f"--cuda needs libnccl.so, but there is none in {home}/lib*.\nNext: set BYTEPS_NCCL_HOME.")
