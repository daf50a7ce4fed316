"""One cell after the other, each as a process of its own with a time limit."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.suite.grid_folder import GridFolder
from benchmarks.suite.results import CellName, CellResult, Judged, without_run, write_result
from dynamix_ps.launch.host.parent import tied
from dynamix_ps.launch.host.process import how_it_ended
from dynamix_ps.launch.job.interrupts import Interrupts

START_UP_S = 180.0  # beyond the limit of training: imports at a tenth of a core, data, the last evaluation
_GRACE_S = 30.0  # from TERM to KILL: an orderly stop of all roles
_TICK_S = 1.0  # seldom, as training is being measured meanwhile
_TAIL_LINES = 12
_TAIL_BYTES = 1 << 16


def cell_command(cell: CellName, out: Path) -> Sequence[str]:
    """The process that runs a cell and writes its result below `out`."""
    names = (cell.scenario, cell.workload, cell.contender, str(cell.seed))
    return (sys.executable, "-m", "benchmarks.suite.cell", *names, "--out", str(out))


class CellRunner:
    """Runs cells in a grid's folder.

    Args:
        folder: which holds results and logs.
        held: descriptors that keep folder (GridFolder.held) and machine (machine_lock.py) for us; cells inherit them.
        interrupts: the first one ends a cell in order, the second kills it.
        command: makes the command line of a cell.
        on_tick: called about once per second.
        start_up_s: what a cell may take beyond its workload's limit.
        grace_s: what it may take to end.
    """

    def __init__(
        self,
        folder: GridFolder,
        held: tuple[int, ...],
        interrupts: Interrupts,
        command: Callable[[CellName, Path], Sequence[str]] = cell_command,
        on_tick: Callable[[], None] = lambda: None,
        start_up_s: float = START_UP_S,
        grace_s: float = _GRACE_S,
    ) -> None:
        self._folder = folder
        self._held = held
        self._interrupts = interrupts
        self._command = command
        self._on_tick = on_tick
        self._start_up_s = start_up_s
        self._grace_s = grace_s

    def run(self, cell: CellName, workload: Judged) -> CellResult | None:
        """The cell's result, which also lies in the folder; None where an interrupt ended it.

        A cell that leaves no result has failed and says why. It replaces the result of an earlier try.
        """
        self._folder.result_file(cell).unlink(missing_ok=True)
        log = self._folder.log_file(cell)
        limit_s = workload.limit_s + self._start_up_s
        with log.open("wb") as output:
            code, stopped = self._process(self._command(cell, self._folder.cells), output.fileno(), limit_s)
        if self._interrupts.count:
            return None
        if (result := self._folder.result(cell)) is not None:
            return result
        why = f"did not end within {limit_s:.0f} s" if stopped else how_it_ended(code)
        last = "".join(tail(log)[-1:])
        result = without_run(
            cell, "failed", f"{why}; its last line: {last}" if last else f"{why} without a word", workload
        )
        write_result(self._folder.cells, result)
        return result

    def _process(self, argv: Sequence[str], output: int, limit_s: float) -> tuple[int, bool]:
        """Exit code (negative: signal), and whether the limit stopped the process."""
        process = subprocess.Popen(
            tied(argv, signal.SIGTERM),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=self._held,
        )
        ended = os.pidfd_open(process.pid)
        try:
            in_time = self._wait(ended, limit_s, until_interrupts=1)
            if not in_time:
                process.send_signal(signal.SIGTERM)
                if not self._wait(ended, self._grace_s, until_interrupts=2):
                    process.kill()
                    self._wait(ended, self._grace_s)
            _kill_group(process.pid)  # what it left behind; its number is ours until the next line
            return process.wait(), not in_time
        finally:
            os.close(ended)

    def _wait(self, ended: int, limit_s: float, until_interrupts: int = sys.maxsize) -> bool:
        """Whether the process has ended, before the limit and before so many interrupts came."""
        deadline = time.monotonic() + limit_s
        while (left_s := deadline - time.monotonic()) > 0 and self._interrupts.count < until_interrupts:
            if select.select([ended], [], [], min(left_s, _TICK_S))[0]:
                return True
            self._on_tick()
        return False


def tail(file: Path) -> list[str]:
    """The last lines of a log that are not empty; none where there is no log."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = log.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()][-_TAIL_LINES:]


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # nothing is left of it but a zombie
