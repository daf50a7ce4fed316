"""Cells of a study on real BytePS: each is a training on an emulated cluster, and leaves a result in a folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from benchmarks.suite.cleanup import remove_leftovers
from benchmarks.suite.grid_folder import GridFolder
from benchmarks.suite.machine_lock import exclusive_machine
from benchmarks.suite.results import CellName, CellResult, Judged
from benchmarks.suite.runner import CellRunner
from benchmarks.suite.tables import CELLS, export, read_tables
from dynamix_ps.errors import JobFailed
from dynamix_ps.launch.job.interrupts import Interrupts
from dynamix_ps.terminal import make_console


def run_on_bed(
    cells: Sequence[CellName],
    folder: GridFolder,
    workload: Judged,
    command: Callable[[CellName, Path], Sequence[str]],
    clock_of: Callable[[CellResult], float | None],
    deadline_s: float,
) -> tuple[dict[CellName, CellResult], bool]:
    """Run what is missing, in its order. Returns the results that tell a clock, and whether somebody interrupted.

    They come from the tables, so they are the same where only these are left.

    Args:
        workload: its limit of time is that of a cell.
        command: the process that runs a cell and writes its result below a folder.
        clock_of: seconds per sample; None: the cell runs again.
        deadline_s: begin no cell after this moment of the monotonic clock.

    Raises JobFailed if a cell told no clock: it failed, diverged or was too slow.
    """
    console = make_console()

    def wait() -> None:
        console.print("another grid runs on this machine, and two would slow each other down; waiting")

    failed = []
    with folder.held(wait) as kept_folder, exclusive_machine(wait) as kept_machine, Interrupts() as interrupts:
        folder.prepare()
        runner = CellRunner(folder, (kept_folder, kept_machine), interrupts, command)
        told = _known(cells, folder, clock_of)
        missing = [cell for cell in cells if cell not in told]
        for number, cell in enumerate(missing, start=1):
            if time.monotonic() > deadline_s:
                break
            result = runner.run(cell, workload)
            if result is None:
                break
            clock = clock_of(result)
            said = f"{result.ended} {result.reason}" if clock is None else f"{1e6 * clock:.0f} \u00b5s per sample"
            console.print(f"[{number}/{len(missing)}] {cell}: {said}", highlight=False, markup=False, soft_wrap=True)
            if clock is None:
                failed.append(cell)
        told = _known(cells, folder, clock_of)
    if interrupts.count or failed:
        remove_leftovers()
    if failed:
        logs = "\n".join(f"{cell}: {folder.log_file(cell)}" for cell in failed)
        raise JobFailed(f"{len(failed)} cells told no clock, the same command tries them again:\n{logs}")
    return told, interrupts.count > 0


def _known(
    cells: Collection[CellName], folder: GridFolder, clock_of: Callable[[CellResult], float | None]
) -> dict[CellName, CellResult]:
    export(folder.path)
    every = read_tables(folder.path) if (folder.path / CELLS).exists() else ()
    wanted = set(cells)
    return {one.name: one for one in every if one.name in wanted and clock_of(one) is not None}


def machines(results: Mapping[CellName, CellResult]) -> str:
    """On which machines, and how fast they were."""
    names = sorted({one.machine or "an unknown machine" for one in results.values()})
    speeds = [one.machine_gflop_per_s for one in results.values() if one.machine_gflop_per_s]
    return f"{' and '.join(names)}, at {min(speeds):.0f} to {max(speeds):.0f} GFLOP/s"
