"""What test beds and runs left behind that were killed, beds whose owner has ended among them."""

from __future__ import annotations

from benchmarks.testbed.commands import BedError
from benchmarks.testbed.removal import remove_left_over
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.cleanup import release_stale


def remove_leftovers() -> list[str]:
    """End and remove it; a line for each. What still runs under its owner is left alone.

    Raises:
        EnvironmentNotReady: a test bed cannot be removed, for lack of permission for example.
    """
    runs = [f"run {run_id}: processes, shared memory, control groups" for run_id in release_stale()]
    try:
        return [*runs, *(f"test bed {bed}" for bed in remove_left_over())]
    except BedError as error:
        raise EnvironmentNotReady(f"a test bed is left over and cannot be removed: {error}; try as root") from error
