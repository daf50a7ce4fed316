"""Finds bcc, which distributions install for their own Python only, and keeps its output off the terminal."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from dynamix_ps.metrics.network.connection import SourceError

INSTALL = "apt-get install python3-bpfcc (Fedora: dnf install python3-bcc)"
HEADERS = Path(__file__).parent / "headers"

_SYSTEM_FOLDERS = (Path("/usr/lib/python3/dist-packages"), Path("/usr/lib/python3/site-packages"))


def load_bcc() -> ModuleType:
    """The bcc of the BPF Compiler Collection. It is pure Python over a C library, so any Python 3 can use it.

    Raises SourceError if it is not installed or does not load.
    """
    found = sys.modules.get("bcc")
    if found is not None and hasattr(found, "BPF"):
        return found
    stranger, fix = "", INSTALL
    for package in _packages():
        if (package / "libbcc.py").is_file():
            return _import_from(package)
        stranger = f"; {package} is another package of this name, about crystal lattices"
        fix = f"{INSTALL}; pip uninstall bcc"
    raise SourceError(f"the Python package bcc of the BPF Compiler Collection is not installed{stranger}", fix)


@contextlib.contextmanager
def quiet() -> Iterator[list[str]]:
    """Collects the lines that C code of this process writes to standard error, instead of showing them."""
    lines: list[str] = []
    sys.stderr.flush()
    terminal = os.dup(2)
    try:
        with tempfile.TemporaryFile() as captured:
            os.dup2(captured.fileno(), 2)
            try:
                yield lines
            finally:
                sys.stderr.flush()
                os.dup2(terminal, 2)
                captured.seek(0)
                lines.extend(captured.read().decode(errors="replace").splitlines())
    finally:
        os.close(terminal)


@contextlib.contextmanager
def own_headers() -> Iterator[None]:
    """Makes bcc compile with this package's replacements for kernel headers, independent of installed headers."""
    name = "BCC_KERNEL_SOURCE"
    before = os.environ.get(name)
    os.environ[name] = str(HEADERS)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _packages() -> Iterator[Path]:
    for folder in dict.fromkeys([*map(Path, filter(None, sys.path)), *_SYSTEM_FOLDERS]):
        package = folder / "bcc"
        if (package / "__init__.py").is_file():
            yield package


def _import_from(package: Path) -> ModuleType:
    _forget()
    file = package / "__init__.py"
    spec = importlib.util.spec_from_file_location("bcc", file, submodule_search_locations=[str(package)])
    if spec is None or spec.loader is None:
        raise SourceError(f"{file} is no Python module", INSTALL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["bcc"] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError) as error:
        _forget()
        raise SourceError(f"{package} cannot be imported: {error}", f"{INSTALL}, for this machine") from None
    return module


def _forget() -> None:
    for name in [name for name in sys.modules if name == "bcc" or name.startswith("bcc.")]:
        del sys.modules[name]
