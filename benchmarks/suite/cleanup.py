"""Removes what killed test beds, runs and cells left behind, and test beds whose owner has ended."""

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
    """A new folder for the run of a cell. This process removes it; `remove_leftovers` does if it was killed."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def remove_leftovers() -> list[str]:
    """End and remove everything that is left over; gives a line for each. What still has an owner stays.

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
