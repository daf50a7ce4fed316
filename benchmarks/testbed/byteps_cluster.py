"""Real BytePS processes that run a script each, on this machine or on a bed, with time limits and cleanup."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.testbed.bed import Bed
from benchmarks.testbed.byteps_roles import OURS, SERVER, BytePSRoles, Place, on_bed, on_loopback

ROOT = Path(__file__).resolve().parents[2]
SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Finished:
    """How one role ended and what it printed."""

    returncode: int
    output: str

    @property
    def result(self) -> Any:
        """The last line that is a JSON document: BytePS may log something after it. Raises LookupError without one."""
        for line in reversed(self.output.splitlines()):
            with suppress(json.JSONDecodeError):
                return json.loads(line)
        raise LookupError(f"no line is a JSON document:\n{self.output}")


class Cluster(BytePSRoles):
    """One worker per script; their logs have all that roles print.

    `script` is Python source; every worker gets its rank as DMLC_WORKER_ID. `serve` is the source of servers and
    scheduler.
    """

    def __init__(
        self,
        script: str,
        workers: int = 2,
        servers: int = 1,
        env: Mapping[str, str] | None = None,
        shm_prefix: bool = True,
        serve: str = SERVER[1],
        place: Callable[[str], Place] = on_loopback,
    ) -> None:
        folder = Path(tempfile.mkdtemp(prefix="dx-test-"))
        script_file = folder / "worker.py"
        script_file.write_text(textwrap.dedent(script))
        env = {
            **OURS,
            "BYTEPS_FORCE_DISTRIBUTED": "1",
            "NVIDIA_VISIBLE_DEVICES": "0",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(ROOT),
            **(env or {}),
        }
        super().__init__(folder, env, [str(script_file)], ("-c", serve), workers, servers, place, shm_prefix)

    def _streams(self, log: IO[bytes]) -> dict[str, Any]:
        return {"cwd": self.folder, "stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}

    def pid(self, role: str) -> int:
        return self.processes[role].pid

    def ended(self, role: str) -> bool:
        return self.processes[role].poll() is not None

    def wait(self, role: str, timeout_s: float) -> Finished:
        """Wait for the end of one role; a failure shows what all of them printed."""
        try:
            returncode = self.processes[role].wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{role} did not end within {timeout_s} s\n{self._all_output()}") from None
        return Finished(returncode, self.output(role))

    def results(self, timeout_s: float) -> list[Any]:
        """Wait until every role ended by itself with 0 and return each worker's result."""
        deadline = time.monotonic() + timeout_s
        finished = {role: self.wait(role, max(0.1, deadline - time.monotonic())) for role in reversed(self.processes)}
        failed = {role: one.returncode for role, one in finished.items() if one.returncode}
        assert not failed, f"ended with a failure: {failed}\n{self._all_output()}"
        return [finished[role].result for role in self.processes if role.startswith("worker-")]

    def wait_for(self, role: str, text: str, timeout_s: float) -> None:
        """Wait until `role` has printed `text`."""
        deadline = time.monotonic() + timeout_s
        while text not in self.output(role):
            ended = self.processes[role].poll()
            if ended is not None or time.monotonic() > deadline:
                raise AssertionError(f"{role} did not print {text!r} (ended: {ended})\n{self._all_output()}")
            time.sleep(0.05)

    def segments(self) -> list[str]:
        """Shared-memory segments of this cluster that exist now."""
        return sorted(path.name for path in SHM.glob(f"{self.run_id}*"))

    def _all_output(self) -> str:
        return "\n".join(f"--- {role}\n{self.output(role)[-3000:]}" for role in self.processes)

    def end(self) -> None:
        """Remove the folder, too."""
        super().end()
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
        self._on_start = on_start
        super().__init__(script, workers, servers, env, place=on_bed(bed, host_of))

    def _popen(self, role: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        process = super()._popen(role, command, **options)
        self._on_start(process.pid)
        return process
