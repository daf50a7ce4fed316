"""Starts the arbitrator, starts it again when it dies, and stops it at the end.

`python -m server_hooks.arbitrator_watch` does only this, for data planes without a scheduler.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from dynamix_ps import own_process
from dynamix_ps.config import variables
from dynamix_ps.config.load import load_config
from dynamix_ps.errors import UsageError
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.launch.host.parent import tied
from dynamix_ps.launch.host.process import how_it_ended
from dynamix_ps.launch.job.restarts import RestartBudget
from dynamix_ps.one_thread import ONE_THREAD

_STOP_GRACE_S = 5.0


class ArbitratorWatch:
    """Keeps one arbitrator process alive, from a thread. Writes what happens to `journal` as JSON lines."""

    def __init__(self, command: Sequence[str], journal: Path, budget: RestartBudget | None = None) -> None:
        self._command = list(command)
        self._journal = journal
        self._budget = budget or RestartBudget()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="arbitrator-watch", daemon=True)

    def start(self) -> None:
        """Returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the arbitrator: TERM, so that it completes its journal, then KILL after a grace."""
        self._stopping.set()
        with self._lock:
            process = self._process
        if process is not None:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # a stopped one gets SIGTERM only when it goes on
            try:
                process.wait(_STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join(_STOP_GRACE_S)

    def _run(self) -> None:
        restarts = 0
        while (code := self._once()) is not None and not self._stopping.is_set():
            delay_s = self._budget.next_delay_s(time.monotonic())
            self._note("arbitrator_exit", code=code, how=how_it_ended(code), restart_in_s=delay_s)
            if delay_s is None:
                print(
                    f"arbitrator {how_it_ended(code)} too often; it is not started again, batch sizes stay as they are"
                )
                self._note("arbitrator_given_up", restarts=restarts)
                return
            if self._stopping.wait(delay_s):
                return
            restarts += 1
            self._note("arbitrator_restarted", restarts=restarts)

    def _once(self) -> int | None:
        """Run the arbitrator to its end. Returns its exit code; none if the watch is stopping and does not start it."""
        with self._lock:
            if self._stopping.is_set():
                return None
            self._process = process = subprocess.Popen(
                # TERM, not KILL: the arbitrator completes its journal also when the scheduler is killed.
                tied(self._command, signal.SIGTERM),
                env={**os.environ, **ONE_THREAD},
                stdin=subprocess.DEVNULL,
            )
        return process.wait()

    def _note(self, kind: str, **fields: object) -> None:
        line = json.dumps({"kind": kind, "time_s": time.time(), **fields})
        try:
            with self._journal.open("a", encoding="utf-8") as out:
                out.write(line + "\n")
        except OSError as error:
            print(f"cannot write {self._journal}: {error}; {line}", flush=True)


def arbitrator_watch() -> ArbitratorWatch | None:
    """The watch for this environment; none without a cluster file or in a job without one.

    Raises:
        ConfigError: the cluster file is wrong.
        UsageError: a variable that the arbitrator needs is missing.
    """
    config_file = variables.get(variables.CONFIG)
    if config_file is None or not load_config(config_file).has_arbitrator:
        return None
    missing = [
        name
        for name in (variables.RUN_DIR, variables.RUN_ID, variables.ARBITRATOR, variables.TOKEN)
        if variables.get(name) is None
    ]
    if missing:
        raise UsageError(f"{variables.CONFIG} is set, but the arbitrator also needs {', '.join(missing)}")
    folder = Path(variables.get(variables.RUN_DIR) or "") / "arbitrator"
    return ArbitratorWatch(own_process.command("dynamix_ps.arbitrator"), folder / "watch.jsonl")


def main() -> int:
    """Watch in the foreground until SIGTERM."""
    watch = arbitrator_watch()
    if watch is None:
        raise UsageError(f"nothing to watch: {variables.CONFIG} is not set, or its job has no arbitrator")
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    watch.start()
    ended.wait()
    watch.stop()
    return 0


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
