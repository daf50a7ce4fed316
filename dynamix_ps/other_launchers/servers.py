"""The scheduler and the servers beside the workers of a machine, as children of the companion there.

A server or scheduler that ends before the workers is a loss: those that are connected to it end with an error, and so
does the worker that has started the companion, which may not be connected yet. A worker that is lost shows to nobody on
another machine. So the servers beside it end too, which shows.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from dynamix_ps.launch.host.parent import tied
from dynamix_ps.launch.host.process import how_it_ended
from dynamix_ps.launch.roles.plan import RoleSpec, role_environment
from dynamix_ps.other_launchers.workers_here import TICK_S, WorkerProcesses
from dynamix_ps.run_record.run_folder import RunFolder

_OWN_END_S = 15.0  # as under `dynamix launch`, after the end of the workers
_ALONE_S = 3.0  # in which servers end by themselves where a worker has ended in order
_TERM_S = 1.0


class ServerProcesses:
    """Attributes:
    lost: which one has ended before the workers, and how; empty: none has.
    """

    def __init__(self, roles: Sequence[RoleSpec], folder: RunFolder, workers: WorkerProcesses) -> None:
        """Start them; each has a log in `folder`. Whoever reads the standard output of this process hears of a loss."""
        self._workers, self._ear, self.lost = workers, os.dup(1), ""
        self._alone_s: float | None = None  # since when a worker is missing
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        for role in roles:
            with folder.log_file(role.name).open("ab") as log:
                self._running[role.name] = subprocess.Popen(
                    tied(role.argv),
                    env=role_environment(role, os.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

    def look(self) -> None:
        """See which of them have ended, and end the others if a worker is missing."""
        for name, process in list(self._running.items()):
            if (code := process.poll()) is None:
                continue
            self._remove(name)
            if code and not self.lost:
                self.lost = f"{name} {how_it_ended(code)}; see logs/{name}.log in the run folder"
                if not self._workers.starter_is_done:
                    with suppress(OSError):  # nobody reads
                        os.write(self._ear, f"{self.lost}\n".encode())
        if self._running and self._workers.some_gone:
            self._alone_s = self._alone_s or time.monotonic()
            if time.monotonic() - self._alone_s > _ALONE_S:
                self._stop()

    def end(self) -> None:
        """They end by themselves where the workers have left in order, and are stopped otherwise."""
        until_s = time.monotonic() + (_OWN_END_S if self._workers.starter_is_done else 0.0)
        while self._running and time.monotonic() < until_s:
            self.look()
            time.sleep(TICK_S / 4)
        self._stop()

    def _stop(self) -> None:
        for process in self._running.values():
            os.killpg(process.pid, signal.SIGTERM)
        until_s = time.monotonic() + _TERM_S
        for name, process in list(self._running.items()):
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until_s - time.monotonic()))
            self._remove(name)

    def _remove(self, name: str) -> None:
        """It has ended, or is killed. So is what it has left in its session, such as the arbitrator."""
        process = self._running.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
