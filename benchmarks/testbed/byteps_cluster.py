"""Real BytePS processes: scheduler, servers and workers, on this machine or on a bed, with time limits and cleanup."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.testbed.bed import Bed
from benchmarks.testbed.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Finished:
    """How one role ended and what it printed."""

    returncode: int
    output: str

    @property
    def result(self) -> Any:
        """The JSON document on the last line."""
        return json.loads(self.output.strip().splitlines()[-1])


class Cluster:
    """Scheduler, servers and one worker per script. A context manager: nothing outlives it.

    `script` is Python source; every worker gets its rank as DMLC_WORKER_ID. `shm_prefix=None` gives the
    workers no prefix of their own, as BytePS is shipped. Without servers there is no scheduler: a ring.
    `serve` is the source of servers and scheduler.
    """

    def __init__(
        self,
        script: str,
        workers: int = 2,
        servers: int = 1,
        env: Mapping[str, str] | None = None,
        shm_prefix: bool = True,
        serve: str = "import byteps.server",
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dx-test-"))
        self.run_id = f"dxtest{secrets.token_hex(4)}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        script_file = self.folder / "worker.py"
        script_file.write_text(textwrap.dedent(script))
        base = {name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "BYTEPS_"))}
        base |= {
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(free_port()),
            "DMLC_NODE_HOST": "127.0.0.1",
            "BYTEPS_FORCE_DISTRIBUTED": "1",
            "BYTEPS_LOG_LEVEL": "WARNING",
            "BYTEPS_SERVER_ENGINE_THREAD": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(ROOT),
        }
        base |= dict(env or {})
        server_command = [sys.executable, "-c", serve]
        if servers:
            self._start("scheduler", server_command, base | {"DMLC_ROLE": "scheduler"})
        for rank in range(servers):
            self._start(f"server-{rank}", server_command, base | {"DMLC_ROLE": "server"})
        for rank in range(workers):
            sockets = self.folder / f"sockets-{rank}"
            sockets.mkdir()
            own = {
                "DMLC_ROLE": "worker",
                "DMLC_WORKER_ID": str(rank),
                "BYTEPS_LOCAL_RANK": "0",
                "BYTEPS_LOCAL_SIZE": "1",
                "NVIDIA_VISIBLE_DEVICES": "0",
                "BYTEPS_SOCKET_PATH": str(sockets),
            }
            if shm_prefix:
                own["BYTEPS_SHM_PREFIX"] = f"{self.run_id}-{rank}-"
            self._start(f"worker-{rank}", [sys.executable, str(script_file)], base | own)

    def _start(self, role: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        with (self.folder / f"{role}.log").open("wb") as log:
            self._processes[role] = self._popen(
                role,
                command,
                env=dict(env),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _popen(self, role: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Where a role runs; here, on this machine."""
        return subprocess.Popen(command, **options)

    def pid(self, role: str) -> int:
        return self._processes[role].pid

    def ended(self, role: str) -> bool:
        return self._processes[role].poll() is not None

    def output(self, role: str) -> str:
        """What `role` printed so far."""
        return (self.folder / f"{role}.log").read_text(errors="replace")

    def wait(self, role: str, timeout_s: float) -> Finished:
        """Wait for the end of one role; a failure shows what all of them printed."""
        try:
            returncode = self._processes[role].wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{role} did not end within {timeout_s} s\n{self._all_output()}") from None
        return Finished(returncode, self.output(role))

    def results(self, timeout_s: float) -> list[Any]:
        """Wait until every role ended by itself with 0 and return each worker's last line as JSON."""
        deadline = time.monotonic() + timeout_s
        finished = {role: self.wait(role, max(0.1, deadline - time.monotonic())) for role in reversed(self._processes)}
        failed = {role: one.returncode for role, one in finished.items() if one.returncode}
        assert not failed, f"ended with a failure: {failed}\n{self._all_output()}"
        return [finished[role].result for role in sorted(finished) if role.startswith("worker-")]

    def wait_for(self, role: str, text: str, timeout_s: float) -> None:
        """Wait until `role` has printed `text`."""
        deadline = time.monotonic() + timeout_s
        while text not in self.output(role):
            ended = self._processes[role].poll()
            if ended is not None or time.monotonic() > deadline:
                raise AssertionError(f"{role} did not print {text!r} (ended: {ended})\n{self._all_output()}")
            time.sleep(0.05)

    def kill(self, role: str) -> None:
        """kill -9 of a role's process group."""
        process = self._processes[role]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    def segments(self) -> list[str]:
        """Shared-memory segments of this cluster that exist now."""
        return sorted(path.name for path in SHM.glob(f"{self.run_id}*"))

    def _all_output(self) -> str:
        return "\n".join(f"--- {role}\n{self.output(role)[-3000:]}" for role in self._processes)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for role in self._processes:
            self.kill(role)
        for path in SHM.glob(f"{self.run_id}*"):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def own_host(role: str) -> str:
    """Worker i on host `worker-i`, scheduler and servers on host `server`."""
    return role if role.startswith("worker-") else "server"


class BedCluster(Cluster):
    """The same on the hosts of a bed.

    `host_of` places a role; `on_start` gets the pid of every role before it can have connected.
    """

    def __init__(
        self,
        bed: Bed,
        script: str,
        workers: int,
        on_start: Callable[[int], object] = lambda pid: None,
        env: Mapping[str, str] | None = None,
        servers: int = 1,
        host_of: Callable[[str], str] = own_host,
    ) -> None:
        self._bed, self._host_of, self._on_start = bed, host_of, on_start
        env = {**(env or {}), "DMLC_PS_ROOT_URI": bed.address(host_of("scheduler"))}
        super().__init__(script, workers, servers, env)

    def _popen(self, role: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        host = self._host_of(role)
        options["env"]["DMLC_NODE_HOST"] = self._bed.address(host)
        process = self._bed.popen(host, command, **options)
        self._on_start(process.pid)
        return process
