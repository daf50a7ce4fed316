"""Removes what killed test beds, runs and cells left behind, and test beds whose owner has ended."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from benchmarks.testbed.commands import BedError
from benchmarks.testbed.removal import remove_left_over
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.cleanup.owner_lock import hold, owner_has_ended
from dynamix_ps.launch.cleanup.release import release_stale

_PREFIX = "dx-cell-"
_OWN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def cell_folder() -> Path:
    """A new folder for the run of a cell. This process removes it; `remove_leftovers` does if it was killed."""
    folder = Path(tempfile.mkdtemp(prefix="dx-new-cell-"))
    hold(os.open(folder, _OWN_FOLDER))  # open until this process ends
    return folder.rename(folder.with_name(folder.name.replace("dx-new-cell-", _PREFIX)))


def remove_leftovers() -> list[str]:
    """End and remove everything that is left over; gives a line for each. What still has an owner stays.

    Raises:
        EnvironmentNotReady: a test bed cannot be removed, for lack of permission for example.
    """
    lines = [f"run {run_id}: processes, shared memory, control groups" for run_id in release_stale()]
    lines += [f"folder {folder}" for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*") if _removed(folder)]
    try:
        return [*lines, *(f"test bed {bed}" for bed in remove_left_over())]
    except BedError as error:
        raise EnvironmentNotReady(f"a test bed is left over and cannot be removed: {error}; try as root") from error


def _removed(folder: Path) -> bool:
    """Remove the folder of a cell, unless its process lives."""
    try:
        handle = os.open(folder, _OWN_FOLDER)
    except OSError:
        return False
    try:
        ended = owner_has_ended(handle)
        if ended:
            shutil.rmtree(folder, ignore_errors=True)
        return ended
    finally:
        os.close(handle)
