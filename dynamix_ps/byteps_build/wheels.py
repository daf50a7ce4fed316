"""Joins several wheels of one package to one wheel with the files of all."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from dynamix_ps import own_process
from dynamix_ps.errors import BuildError


def join_wheels(wheels: Sequence[Path], folder: Path) -> Path:
    """Write one wheel to `folder` with the files of all `wheels`, which have the same package and version.

    If several wheels have a file, the first one counts. Raises BuildError if a wheel cannot be read or written.
    """
    if len(wheels) == 1:
        return wheels[0]
    trees = [_unpacked(wheel, folder / str(number)) for number, wheel in enumerate(wheels)]
    for tree in trees[1:]:
        for path in sorted(tree.rglob("*")):
            target = trees[0] / path.relative_to(tree)
            if path.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
    _run("pack", str(trees[0]), "--dest-dir", str(folder))  # writes a new RECORD
    return next(folder.glob("*.whl"))


def _unpacked(wheel: Path, folder: Path) -> Path:
    _run("unpack", str(wheel), "--dest", str(folder))
    return next(folder.iterdir())


def _run(*arguments: str) -> None:
    done = subprocess.run(own_process.command("wheel", *arguments), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(
            f"`python -m wheel {' '.join(arguments)}` failed:\n{(done.stdout + done.stderr).strip()[-2000:]}\n"
            "Next: check the space in TMPDIR, and that the package wheel is a recent one (pip install -U wheel)."
        )
