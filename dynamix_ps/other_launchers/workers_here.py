"""The processes of the workers on this machine, as a companion sees them."""

from __future__ import annotations

import os
import select
import sys
import time

import psutil

from dynamix_ps.other_launchers.duty import DONE, Duty

TICK_S = 0.2


class WorkerProcesses:
    """The processes of the workers on this machine."""

    def __init__(self, duty: Duty) -> None:
        self._own_rank, self._began = duty.own_rank, len(duty.pids)
        self._processes: dict[int, psutil.Process] = {}
        for rank, pid in duty.pids.items():
            try:
                self._processes[rank] = psutil.Process(pid)
            except psutil.NoSuchProcess:
                continue
        self._heard = b""
        self.starter_is_done = self.starter_is_gone = False

    def look(self) -> None:
        """See who has ended, and hear what the worker says that has started this process. Waits for TICK_S at most."""
        began_s = time.monotonic()
        if not self.starter_is_done and select.select([sys.stdin], [], [], TICK_S)[0]:
            data = os.read(sys.stdin.fileno(), 64)
            self._heard += data
            self.starter_is_done = DONE + b"\n" in self._heard
        time.sleep(max(0.0, began_s + TICK_S - time.monotonic()))
        for rank, process in list(self._processes.items()):
            if not _runs(process):
                del self._processes[rank]
        self.starter_is_gone = self._own_rank not in self._processes

    @property
    def some_gone(self) -> bool:
        """Whether one of them has ended."""
        return len(self._processes) < self._began

    @property
    def others(self) -> set[int]:
        """Ranks of those that run, without the one that has started this process."""
        return self._processes.keys() - {self._own_rank}


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
