"""One real run that a fault hits: its processes and ports, what it says and when, its end, and what it leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.workloads.tiny_regression import trained_alone
from dynamix_ps.config import variables
from dynamix_ps.launch.cleanup.release import processes_of
from dynamix_ps.run_record.iteration_mark import read_mark
from dynamix_ps.run_record.run_folder import RunFolder

PLANES: dict[str, tuple[str, dict[str, str]]] = {  # `comm` of the cluster file, and variables
    "byteps": ("byteps", {}),
    "byteps by TCP": ("byteps", {variables.SHARED_MEMORY: "0"}),
    "gloo": ("gloo", {}),
}
ITERATIONS, SEED, SIZES = 1500, 3, (24, 40)
STALL_FAIL_S = 6.0
START_LIMIT_S = 90.0
_CONFIG = f"""
name: fault
seed: {SEED}
window: 5
batch: {{min: 1}}
emulation: none
metrics: {{tensorboard: false}}
timeouts: {{rpc_s: 0.5, lease_s: 1.0, stall_warn_s: 2.0, stall_fail_s: {STALL_FAIL_S}}}
"""


class NotStarted(Exception):
    """The run did not come as far as the fault."""


class FaultJob:
    """A launch of the tiny regression on a plane of PLANES, in `folder`; its run folder is in `runs`.

    With `adapts`, batch sizes change; the run folder tells when, so it must be whole.
    """

    def __init__(self, folder: Path, plane: str, runs: Path, adapts: bool = True) -> None:
        workers = ", ".join(f"{{batch: {size}}}" for size in SIZES)
        file = folder / "cluster.yaml"
        policy = "proportional" if adapts else "static"
        comm, env = PLANES[plane]
        own = f"comm: {comm}\ncluster: {{workers: [{workers}]}}\nrun_dir: {runs}\npolicy: {{name: {policy}}}\n"
        file.write_text(_CONFIG + own)
        self._out = folder
        module = "benchmarks.workloads.tiny_regression"
        worker = ["python", "-m", module, "--iterations", str(ITERATIONS), "--out", str(folder)]
        command = [sys.executable, "-u", "-m", "dynamix_ps.cli.main", "launch", "-c", str(file), "--", *worker]
        self.process = subprocess.Popen(
            command, env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace"
        )
        self._lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append((time.monotonic(), str(line).rstrip()))

    @property
    def output(self) -> str:
        return "\n".join(line for _, line in self._lines)

    @property
    def run_folder(self) -> RunFolder | None:
        found = re.search(r"^run folder: (.+)$", self.output, re.MULTILINE)
        return RunFolder(Path(found.group(1))) if found else None

    @property
    def run_id(self) -> str:
        """Empty before the run has a folder."""
        return self.run_folder.path.name.rpartition("-")[2] if self.run_folder else ""

    def wait_until_iteration(self, iteration: int) -> None:
        """Until all workers have come so far. Raises NotStarted."""

        def there() -> bool:
            folder = self.run_folder
            marks = [read_mark(folder.iteration_file(rank)) for rank in range(len(SIZES))] if folder else [None]
            return all(mark is not None and mark >= iteration for mark in marks)

        self._wait(there, f"iteration {iteration}")

    def wait_until_there(self, target: str) -> None:
        """Until the process has begun. Raises NotStarted."""
        self._wait(lambda: bool(self.pids_of(target)), target)

    def wait_until_gone(self, limit_s: float) -> None:
        """Until nothing of the run is left, at most so long."""
        deadline = time.monotonic() + limit_s
        while self.leftovers() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise NotStarted(f"waited for {what}:\n{self.output[-2000:]}")
            time.sleep(0.02)

    def pids_of(self, target: str) -> list[int]:
        """The process of a role, the launcher, the reaper, or the arbitrator; none where it is not there."""
        if target == "launcher":
            return [self.process.pid]
        if target == "reaper":
            return reapers_of(self.run_id)
        pids = list(processes_of(self.run_id)) if self.run_id else []
        if target == "arbitrator":
            return [pid for pid in pids if "dynamix_ps.arbitrator" in _command_line(pid)]
        role = f"{variables.ROLE_NAME}={target}"
        return [pid for pid in pids if role in _environment(pid) and _parent(pid) == self.process.pid]

    def send(self, target: str, number: signal.Signals) -> None:
        """Raises NotStarted where the process is not there."""
        pids = self.pids_of(target)
        if not pids:
            raise NotStarted(f"there is no {target}:\n{self.output[-2000:]}")
        for pid in pids:
            os.kill(pid, number)

    def listening(self) -> list[tuple[str, int]]:
        """Addresses on which processes of the run listen."""
        own = set(processes_of(self.run_id))
        found = [one for one in psutil.net_connections("tcp") if one.pid in own and one.status == psutil.CONN_LISTEN]
        places = [(str(host), int(port)) for host, port in (tuple[Any, ...](one.laddr) for one in found)]
        return [("127.0.0.1" if host in ("0.0.0.0", "::") else host, port) for host, port in places]

    def said_s(self, pattern: str, after_s: float) -> float | None:
        """When a line with this pattern first came, on the monotonic clock; none if it did not."""
        return next((at for at, line in self._lines if at >= after_s and re.search(pattern, line)), None)

    def wait(self, timeout_s: float) -> int | None:
        """The exit code of the launcher, none if it does not end in time."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(5.0)
        return code

    def wrong_result(self) -> str:
        """How the weights of the workers differ from those of one process; empty if they do not."""
        assert self.run_folder is not None
        lines = self.run_folder.worker_file(0).read_text(errors="replace").splitlines()
        plans = {0: SIZES}
        for line in lines:
            if '"plan_applied"' in line:
                event = json.loads(line)
                plans[event["iteration"]] = tuple(event["batch_sizes"])
        expected = trained_alone(ITERATIONS, plans, SEED)
        for rank in range(len(SIZES)):
            file = self._out / f"weights-{rank}.npy"
            if not file.exists():
                return f"worker {rank} wrote no weights"
            difference = float(np.max(np.abs(np.load(file) - expected) / (np.abs(expected) + 1e-3)))
            if not difference <= 1e-6:
                return f"weights of worker {rank} differ by {difference:.1e}"
        return ""

    def leftovers(self) -> list[str]:
        """Processes, shared memory, sockets and control groups of the run that are still there."""
        return left_of(self.run_id) if self.run_id else []

    def kill(self) -> None:
        """End all that is left, after a trial that failed."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in processes_of(self.run_id) if self.run_id else ():
            os.kill(pid, signal.SIGKILL)


def left_of(run_id: str) -> list[str]:
    """Processes, shared memory, sockets and control groups of a run that are there."""
    found = [f"process {pid}: {_command_line(pid)}" for pid in [*processes_of(run_id), *reapers_of(run_id)]]
    for folder in ("/dev/shm", "/tmp", tempfile.gettempdir(), "/sys/fs/cgroup", "/sys/fs/cgroup/cpu"):
        found += [str(path) for path in Path(folder).glob(f"*{run_id}*")]
    return sorted(set(found))


def reapers_of(run_id: str) -> list[int]:
    """The processes that clean up after the launcher of this run, should it be killed."""
    mark = f"dynamix_ps.launch.cleanup.reaper {run_id} "
    return [int(pid) for pid in os.listdir("/proc") if run_id and pid.isdigit() and mark in _command_line(int(pid))]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _command_line(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")


def _environment(pid: int) -> list[str]:
    return _read(pid, "environ").decode(errors="replace").split("\0")


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0
