"""Scheduler, servers and workers of a benchmark run, on this machine's loopback or on hosts of a test bed."""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dynamix_ps.config import variables
from dynamix_ps.launch.shared_memory import remove_segments

WORKERS = 2
LIMIT_S = 300.0  # longest silence of a role
_LOOK_S = 1.0  # so often a role that has failed is looked for
# `dynamix launch` starts our BytePS with these
OURS = {"BYTEPS_SERVER_ENGINE_THREAD": "1", "BYTEPS_LOG_LEVEL": "WARNING"}
BYTEPS_SERVER = ("-c", "import byteps.server")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a role runs: the words before its command line, its address and its network interface there."""

    prefix: tuple[str, ...] = ()
    address: str = "127.0.0.1"
    interface: str = "lo"


def on_loopback(role: str) -> Place:
    return Place()


class Roles:
    """The processes of one run, each in its own process group, by name: scheduler, server-0, worker-0 and so on.

    `worker` and `server` are arguments of the Python interpreter; the scheduler gets those of a server. `place` says
    where each role runs. As a context manager it ends all of them.
    """

    def __init__(
        self,
        folder: Path,
        extra: dict[str, str],
        worker: Sequence[str],
        server: Sequence[str] = BYTEPS_SERVER,
        workers: int = WORKERS,
        servers: int = 1,
        place: Callable[[str], Place] = on_loopback,
    ) -> None:
        self._folder, self._workers, self._place = folder, workers, place
        self.prefix = f"dxbench{secrets.token_hex(4)}-"
        self.processes: dict[str, subprocess.Popen[str]] = {}
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        common = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "BYTEPS_"))},
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_PS_ROOT_URI": place("scheduler").address,
            "DMLC_PS_ROOT_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "BYTEPS_LOG_LEVEL": "ERROR",
            **extra,
        }
        self._start("scheduler", server, {**common, "DMLC_ROLE": "scheduler"})
        for number in range(servers):
            self._start(f"server-{number}", server, {**common, "DMLC_ROLE": "server"})
        for rank in range(workers):
            sockets = folder / f"{self.prefix}{rank}"
            sockets.mkdir()
            own = {
                "DMLC_ROLE": "worker",
                "DMLC_WORKER_ID": str(rank),
                "BYTEPS_LOCAL_RANK": "0",
                "BYTEPS_LOCAL_SIZE": "1",
                "BYTEPS_SOCKET_PATH": str(sockets),
                variables.SHM_PREFIX: f"{self.prefix}{rank}-",
            }
            self._start(f"worker-{rank}", worker, {**common, **own})

    def _start(self, name: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        place = self._place(name)
        self.processes[name] = subprocess.Popen(
            [*place.prefix, sys.executable, *arguments],
            env={**environment, "DMLC_NODE_HOST": place.address, "GLOO_SOCKET_IFNAME": place.interface},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self._folder / f"{name}.err").open("w"),
            text=True,
            start_new_session=True,
        )

    def rows(self) -> Iterator[Any]:
        """The JSON documents of worker 0, one per line, as they come; then waits until all roles have ended.

        Raises SystemExit if a role fails or worker 0 is silent for too long.
        """
        output = self.processes["worker-0"].stdout
        assert output is not None
        partial, heard_s = b"", time.monotonic()
        while True:
            if select.select([output], [], [], _LOOK_S)[0]:
                data = os.read(output.fileno(), 1 << 16)
                if not data:
                    break
                *lines, partial = (partial + data).split(b"\n")
                yield from map(json.loads, lines)
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > LIMIT_S:
                raise SystemExit(f"worker-0 printed nothing for {LIMIT_S:.0f} s:\n{self._errors('worker-0')}")
            for name, process in self.processes.items():
                if process.poll():
                    raise self._failed(name)
        self._finish()

    def results(self) -> list[Any]:
        """The last JSON documents of the workers, after all roles have ended. Raises SystemExit if one fails."""
        said = self._finish()
        return [json.loads(said[f"worker-{rank}"].splitlines()[-1]) for rank in range(self._workers)]

    def _finish(self) -> dict[str, str]:
        said = {}
        for name, process in reversed(self.processes.items()):
            try:
                said[name], _ = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                raise SystemExit(f"{name} did not end within {LIMIT_S:.0f} s:\n{self._errors(name)}") from None
            if process.returncode != 0:
                raise self._failed(name)
        return said

    def _failed(self, name: str) -> SystemExit:
        return SystemExit(f"{name} ended with {self.processes[name].returncode}:\n{self._errors(name)}")

    def _errors(self, name: str) -> str:
        return (self._folder / f"{name}.err").read_text()[-3000:]

    def kill(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        remove_segments(self.prefix)

    def __enter__(self) -> Roles:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds that a process has taken."""
    times = process.cpu_times()
    return float(times.user + times.system)
