"""How pip is run: the one of this environment, else the one that comes with Python (environments of uv have none)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from dynamix_ps import own_process
from dynamix_ps.errors import BuildError

_OPTIONS = ("--disable-pip-version-check", "--no-input")
GET_PIP = "uv pip install pip, or apt-get install python3-venv (Debian, Ubuntu)"
_OF_DEBIAN = Path("/usr/share/python-wheels")


def pip() -> tuple[str, ...]:
    """The words before the arguments of pip. Raises BuildError if there is none."""
    if importlib.util.find_spec("pip") is not None:
        return own_process.command("pip", *_OPTIONS)
    for wheel in _bundled():
        return (sys.executable, str(wheel / "pip"), *_OPTIONS)  # Python runs a package in an archive
    raise BuildError(f"the environment {sys.prefix} has no pip, and this Python brings none along; {GET_PIP}")


def how_to_install(package: str) -> str:
    """The command that installs a package into this environment."""
    pip_is_here = importlib.util.find_spec("pip") is not None
    return f"{sys.executable} -m pip install {package}" if pip_is_here else f"uv pip install {package}"


def _bundled() -> Iterator[Path]:
    """Wheels of pip that come with Python."""
    folders = [_OF_DEBIAN]
    if (ensurepip := importlib.util.find_spec("ensurepip")) is not None and ensurepip.origin is not None:
        folders.insert(0, Path(ensurepip.origin).parent / "_bundled")
    for folder in folders:
        yield from sorted(folder.glob("pip-*.whl"), reverse=True)
