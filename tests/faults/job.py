"""Small jobs that get into trouble: workers that act like hooks without torch, and signals from outside."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dynamix_ps.config import variables
from dynamix_ps.launch.cleanup.release import processes_of
from tests.faults.table import LIMIT_S, Outcome
from tests.launching import (
    HOOK,
    assert_nothing_left,
    cluster_file,
    command_line,
    dynamix,
    kill_all,
    read_until,
    reapers_of,
    run_id_in,
    wait_for,
)

# `step()` completes an iteration, `wait_for(name)` waits for a file in the run folder.
WORKER = (
    HOOK
    + """
from pathlib import Path
from dynamix_ps.run_record.iteration_mark import IterationMark
folder = Path(os.environ["DYNAMIX_RUN_DIR"])
mark, done = IterationMark(folder / "workers" / f"worker-{rank}.iteration"), 0
def step():
    global done
    done += 1
    mark.write(done)
def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.02)
"""
)


class Job:
    """A launch with two such workers, in `folder`."""

    def __init__(
        self, folder: Path, body: str, comm: str = "gloo", mode: str = "'off'", settings: str = "", **environ: str
    ) -> None:
        (folder / "worker.py").write_text(WORKER + body)
        self.folder = folder
        self.file = cluster_file(folder, settings, workers="[{}, {}]", comm=comm, mode=mode)
        self.process = dynamix("launch", "-c", str(self.file), "--", "python", "worker.py", cwd=folder, **environ)
        self.output = ""

    @property
    def run_folder(self) -> Path:
        return (self.folder / "runs" / "latest").resolve()

    @property
    def run_id(self) -> str:
        return run_id_in(self.output)

    def wait_until_said(self, text: str, times: int = 1) -> None:
        """Take in output until a line with `text` has come `times` times."""
        for _ in range(times):
            self.output += read_until(self.process, text)

    def pid_of(self, target: str) -> int:
        """The process of a role, or the launcher, the reaper, the arbitrator or the process that watches it."""
        if target == "launcher":
            return self.process.pid
        if target == "reaper":
            (reaper,) = reapers_of(self.run_id)
            return reaper
        if target == "arbitrator":
            found: list[int] = []
            wait_for(lambda: found.extend(self._with_command("dynamix_ps.arbitrator")) or found, "the arbitrator")
            return found[0]
        if target == "arbitrator-watch":
            (watch,) = self._with_command("server_hooks.arbitrator_watch")
            return watch
        role: list[int] = []

        def is_one() -> bool:
            role[:] = [pid for pid in processes_of(self.run_id) if _has(pid, f"{variables.ROLE_NAME}={target}\0")]
            return len(role) == 1

        wait_for(is_one, f"one process of {target}")  # one that replaces its program has no environment for a moment
        return role[0]

    def _with_command(self, module: str) -> list[int]:
        return [pid for pid in processes_of(self.run_id) if module in command_line(f"{pid}").split("\0")]

    def send(self, target: str, *numbers: signal.Signals) -> None:
        for number in numbers:
            os.kill(self.pid_of(target), number)

    def let_workers_finish(self) -> None:
        (self.run_folder / "finish").touch()

    def ends_with(self, outcome: Outcome) -> None:
        """Wait for the end; check exit code, cause, and that nothing is left."""
        rest, _ = self.process.communicate(timeout=LIMIT_S)
        self.output += rest
        assert self.process.returncode == outcome.exit_code, self.output
        assert re.search(outcome.says, self.output), self.output
        if outcome.exit_code < 0:  # nobody but the reaper cleans up
            wait_for(lambda: not list(processes_of(self.run_id)) and not reapers_of(self.run_id), "the reaper")
        assert_nothing_left(self.run_id)


@contextmanager
def job(
    folder: Path, body: str, comm: str = "gloo", mode: str = "'off'", settings: str = "", **environ: str
) -> Iterator[Job]:
    """A job of which nothing outlives the test, also when the test fails."""
    running = Job(folder, body, comm, mode, settings, **environ)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            rest, _ = running.process.communicate()
            running.output += rest or ""
        if "run folder: " in running.output:
            kill_all(running.run_id)


def _has(pid: int, variable: str) -> bool:
    try:
        return variable.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def output_of(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=LIMIT_S)
    return output
