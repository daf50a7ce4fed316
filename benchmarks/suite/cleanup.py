"""What test beds, runs and cells left behind that were killed, beds whose owner has ended among them."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from benchmarks.testbed.commands import BedError
from benchmarks.testbed.removal import remove_left_over
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.cleanup import release_stale

_PREFIX = "dx-cell-"


def cell_folder() -> Path:
    """A new folder for the run of a cell of this process, which removes it, as `remove_leftovers` does without it."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def remove_leftovers() -> list[str]:
    """End and remove it; a line for each. What still runs under its owner is left alone.

    Raises:
        EnvironmentNotReady: a test bed cannot be removed, for lack of permission for example.
    """
    lines = [f"run {run_id}: processes, shared memory, control groups" for run_id in release_stale()]
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", owner).exists():
            shutil.rmtree(folder, ignore_errors=True)
            lines.append(f"folder {folder}")
    try:
        return [*lines, *(f"test bed {bed}" for bed in remove_left_over())]
    except BedError as error:
        raise EnvironmentNotReady(f"a test bed is left over and cannot be removed: {error}; try as root") from error
