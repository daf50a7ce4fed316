"""The processes of a BytePS job: scheduler, servers and workers, on this machine or on the hosts of a bed."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from benchmarks.testbed.bed import Bed
from benchmarks.testbed.ports import free_port
from dynamix_ps.config import variables
from dynamix_ps.launch.cleanup.shared_memory import remove_segments

# `dynamix launch` starts our BytePS with these
OURS = {"BYTEPS_SERVER_ENGINE_THREAD": "1", "BYTEPS_LOG_LEVEL": "WARNING"}
SERVER = ("-c", "import byteps.server")

Entered = TypeVar("Entered", bound="BytePSRoles")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a role runs: the words before its command line, its address and its network interface there."""

    prefix: tuple[str, ...] = ()
    address: str = "127.0.0.1"
    interface: str = "lo"


def on_loopback(role: str) -> Place:
    return Place()


def on_bed(bed: Bed, host_of: Callable[[str], str]) -> Callable[[str], Place]:
    """The places of roles on the hosts of a bed."""
    return lambda role: Place(bed.inside(host_of(role)), bed.address(host_of(role)), "eth0")


class BytePSRoles(ABC):
    """The roles of one job by name: scheduler, server-0, worker-0 and so on, each in a process group of its own.

    A context manager: no process and no shared memory outlives it.

    Args:
        folder: for logs and sockets.
        env: goes over the environment of this process, of which variables of BytePS are left out.
        worker: arguments of the Python interpreter.
        server: likewise; the scheduler gets them too. Without servers there is no scheduler: a ring.
        place: where each role runs.
        shm_prefix: whether the shared memory of workers has names of their own, unlike in BytePS as it is shipped.
    """

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str],
        worker: Sequence[str],
        server: Sequence[str] = SERVER,
        workers: int = 2,
        servers: int = 1,
        place: Callable[[str], Place] = on_loopback,
        shm_prefix: bool = True,
    ) -> None:
        self.folder, self._place = folder, place
        self.run_id = f"dxroles{secrets.token_hex(4)}"
        self.processes: dict[str, subprocess.Popen[Any]] = {}
        common = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "BYTEPS_"))},
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_PS_ROOT_URI": place("scheduler").address,
            "DMLC_PS_ROOT_PORT": str(free_port()),
            "OMP_NUM_THREADS": "1",
            **env,
        }
        if servers:
            self._start("scheduler", server, {**common, "DMLC_ROLE": "scheduler"})
        for number in range(servers):
            self._start(f"server-{number}", server, {**common, "DMLC_ROLE": "server"})
        for rank in range(workers):
            sockets = folder / f"sockets-{self.run_id}-{rank}"
            sockets.mkdir()
            own = {
                "DMLC_ROLE": "worker",
                "DMLC_WORKER_ID": str(rank),
                "BYTEPS_LOCAL_RANK": "0",
                "BYTEPS_LOCAL_SIZE": "1",
                "BYTEPS_SOCKET_PATH": str(sockets),
            }
            if shm_prefix:
                own[variables.SHM_PREFIX] = f"{self.run_id}-{rank}-"
            self._start(f"worker-{rank}", worker, {**common, **own})

    def _start(self, role: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        with (self.folder / f"{role}.log").open("wb") as log:
            options = {"env": environment, "start_new_session": True, **self._streams(log)}
            self.processes[role] = self._popen(role, [sys.executable, *arguments], **options)

    @abstractmethod
    def _streams(self, log: IO[bytes]) -> dict[str, Any]:
        """Options of Popen for what a role reads and writes; `log` is its file."""

    def _popen(self, role: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a role in its place."""
        place = self._place(role)
        options["env"].setdefault("DMLC_NODE_HOST", place.address)
        return subprocess.Popen([*place.prefix, *command], **options)

    def output(self, role: str) -> str:
        """What is in the log of `role` so far."""
        return (self.folder / f"{role}.log").read_text(errors="replace")

    def kill(self, role: str) -> None:
        """kill -9 of a role's process group."""
        process = self.processes[role]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    def end(self) -> None:
        """Kill all roles and remove their shared memory."""
        for role in self.processes:
            self.kill(role)
        remove_segments(self.run_id)

    def __enter__(self: Entered) -> Entered:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
