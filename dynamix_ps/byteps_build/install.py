"""Installs a wheel into the running environment, and reads what is installed there."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from dynamix_ps.byteps_build.pip import pip
from dynamix_ps.byteps_build.recipe import MARKER, sources_digest
from dynamix_ps.errors import BuildError
from dynamix_ps.packages import installed_version


@dataclass(frozen=True, slots=True)
class InstalledInfo:
    """The BytePS of the running environment. `key` and `variant` are empty if another project built it."""

    version: str = ""  # empty: not installed
    plugins: tuple[str, ...] = ()
    key: str = ""
    variant: str = ""
    cuda: bool = False
    sources: str = ""

    @property
    def ours(self) -> bool:
        """Whether this project built it with all edits."""
        return self.variant == "ours"

    @property
    def current(self) -> bool:
        """Whether it was built from the edits of this version of the package; others may not work together with it."""
        return self.sources == sources_digest("ours")


def installed_info() -> InstalledInfo:
    """The package that `import byteps` finds, without importing it."""
    spec = importlib.util.find_spec("byteps")
    if spec is None or spec.origin is None:
        return InstalledInfo()
    folder = Path(spec.origin).parent
    version = installed_version("byteps") or "unknown"
    plugins = tuple(name for name in ("torch", "mxnet", "tensorflow") if any((folder / name).glob("c_lib*.so")))
    marker = folder / MARKER
    if not marker.is_file():
        return InstalledInfo(version, plugins)
    said = json.loads(marker.read_text(encoding="utf-8"))
    return InstalledInfo(version, plugins, said["key"], said["variant"], said["cuda"], said.get("sources", ""))


def lack_of_byteps(framework: str) -> str:
    """Why workers on this host cannot sum arrays of a framework over BytePS; empty: they can."""
    info = installed_info()
    if framework not in info.plugins or not info.ours:
        found = f"found version {info.version} not built by this project" if info.version else "not installed"
        return f"BytePS with its {framework} plugin is needed on {socket.gethostname()}: {found}"
    if not info.current:
        return f"BytePS {info.version} on {socket.gethostname()} was built by another version of this package"
    return ""


def install(wheel: Path, target: Path | None) -> None:
    """pip-install `wheel` into the running environment, or into the folder `target`. Raises BuildError."""
    where = [] if target is None else ["--target", str(target), "--upgrade"]
    done = subprocess.run(
        [*pip(), "install", "--no-deps", "--no-index", "--force-reinstall", *where, str(wheel)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise BuildError(
            f"pip could not install {wheel.name} into {target or sys.prefix}:\n{said}\n"
            "Next: check that you may write there, or use a virtual environment."
        )
    importlib.invalidate_caches()


def check_import(plugin: str, target: Path | None) -> None:
    """Load the installed plugin in a separate process. Raises BuildError if it does not load."""
    paths = [str(target)] if target else []
    python_path = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", f"import byteps.{plugin}"],
        env={**os.environ, "PYTHONPATH": python_path},
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    if done.returncode != 0:
        raise BuildError(
            f"BytePS was built, but its {plugin} plugin does not load:\n{done.stderr.strip()[-2000:]}\n"
            "Next: `dynamix build-byteps --rebuild`; if the error stays, torch and compiler are incompatible."
        )
