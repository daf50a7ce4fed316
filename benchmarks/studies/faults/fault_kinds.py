"""The faults of the campaign: what is done to a run, and what has to come of it."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from benchmarks.studies.faults.fault_job import ITERATIONS, PLANES, STALL_FAIL_S, FaultJob
from benchmarks.testbed.small_disk import fill

SURVIVES: Final = "survives"  # exit code 0, and the weights of one process
FAILS: Final = "fails"  # another exit code, and the error names the target
ENDS: Final = "ends"  # the launcher itself is gone, and with it all of the run
EITHER: Final = "survives or fails"  # at the end of training it depends on who comes first
Outcome = Literal["survives", "fails", "ends", "survives or fails"]

_KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV)
_FIRST, _LAST = 10, ITERATIONS // 2  # iterations between which a fault comes
_SHORT_STOP_S = 1.5
_IDLE_CONNECTIONS = 50  # per port
IN_MEMORY, BY_TCP = SERVERS = ("byteps", "byteps by TCP")
ALL = tuple(PLANES)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    Args:
        strike: does it; called when training has come to a random iteration.
        names: what the error has to name (regular expression), where the run fails.
        allowed_s: seconds until the run may notice, beyond the limit for all.
        at_start: strike before training, as soon as this process is there.
        at_end: strike in one of the last iterations, or right after them.
    """

    key: str
    expected: Outcome
    planes: tuple[str, ...]
    strike: Callable[[FaultJob, random.Random], None]
    names: str = ""
    allowed_s: float = 0.0
    at_start: str = ""
    at_end: bool = False
    small_disk: bool = False

    def wait(self, job: FaultJob, rng: random.Random) -> None:
        """Until the moment of the fault. Raises NotStarted."""
        if self.at_start:
            job.wait_until_there(self.at_start)
            time.sleep(rng.uniform(0.0, 2.0))
        elif self.at_end:
            job.wait_until_iteration(ITERATIONS - rng.randint(1, 20))
            time.sleep(rng.uniform(0.0, 0.2))
        else:
            job.wait_until_iteration(rng.randint(_FIRST, _LAST))


def _kill(target: str) -> Callable[[FaultJob, random.Random], None]:
    return lambda job, rng: job.send(target, rng.choice(_KILLS))


def _signal(target: str, number: signal.Signals) -> Callable[[FaultJob, random.Random], None]:
    return lambda job, rng: job.send(target, number)


def _stop_a_while(target: str) -> Callable[[FaultJob, random.Random], None]:
    def strike(job: FaultJob, rng: random.Random) -> None:
        job.send(target, signal.SIGSTOP)
        time.sleep(rng.uniform(0.1, _SHORT_STOP_S))
        job.send(target, signal.SIGCONT)

    return strike


def _full_disk(job: FaultJob, rng: random.Random) -> None:
    assert job.run_folder is not None
    fill(job.run_folder.path.parent)


def _garbage(job: FaultJob, rng: random.Random) -> None:
    """Random bytes, and the beginning of a frame of the data plane that declares 2^39 bytes, to every port."""
    frame = b"1mxd" + bytes(8) + (1).to_bytes(4, "little") + (1 << 39).to_bytes(8, "little") + bytes(24)
    for address in job.listening():
        for content in (rng.randbytes(rng.randint(1, 4096)), frame, b"GET / HTTP/1.1\r\n\r\n"):
            try:
                with socket.create_connection(address, 1.0) as connection:
                    connection.sendall(content)
            except OSError:
                continue  # refused is well


def _idle(job: FaultJob, rng: random.Random) -> None:
    """Connections that say nothing, to every port, held for two seconds."""
    held = []
    for address in job.listening():
        for _ in range(_IDLE_CONNECTIONS):
            try:
                held.append(socket.create_connection(address, 1.0))
            except OSError:
                continue
    time.sleep(2.0)
    for connection in held:
        connection.close()


KINDS = (
    Kind("worker killed", FAILS, ALL, _kill("worker-1"), "worker-1"),
    Kind("server killed", FAILS, SERVERS, _kill("server-0"), "server-0"),
    Kind("scheduler killed", FAILS, SERVERS, _kill("scheduler"), "scheduler"),
    Kind("worker killed at its start", FAILS, ALL, _kill("worker-0"), "worker-0", at_start="worker-0"),
    Kind("server killed at its start", FAILS, SERVERS, _kill("server-0"), "server-0", at_start="server-0"),
    Kind("scheduler killed at its start", FAILS, SERVERS, _kill("scheduler"), "scheduler", at_start="scheduler"),
    Kind("worker killed at its end", EITHER, ALL, _kill("worker-1"), "worker-1", at_end=True),
    Kind("server killed at its end", EITHER, SERVERS, _kill("server-0"), "server-0", at_end=True),
    Kind("scheduler killed at its end", EITHER, SERVERS, _kill("scheduler"), "scheduler", at_end=True),
    Kind("worker stopped", FAILS, ALL, _signal("worker-1", signal.SIGSTOP), "worker-1", STALL_FAIL_S),
    Kind("server stopped", FAILS, (BY_TCP,), _signal("server-0", signal.SIGSTOP), "server-0", STALL_FAIL_S),
    Kind("server stopped, not needed", SURVIVES, (IN_MEMORY,), _signal("server-0", signal.SIGSTOP)),
    Kind("worker stopped for a while", SURVIVES, ALL, _stop_a_while("worker-0")),
    Kind("server stopped for a while", SURVIVES, SERVERS, _stop_a_while("server-0")),
    Kind("scheduler stopped for a while", SURVIVES, SERVERS, _stop_a_while("scheduler")),
    Kind("launcher stopped for a while", SURVIVES, ALL, _stop_a_while("launcher")),
    Kind("arbitrator killed", SURVIVES, ALL, _kill("arbitrator")),
    Kind("arbitrator stopped", SURVIVES, ALL, _signal("arbitrator", signal.SIGSTOP)),
    Kind("reaper killed", SURVIVES, ALL, _signal("reaper", signal.SIGKILL)),
    Kind("launcher killed", ENDS, ALL, _signal("launcher", signal.SIGKILL)),
    Kind("launcher interrupted", FAILS, ALL, _signal("launcher", signal.SIGINT), "interrupted by SIGINT"),
    Kind("disk of the run folder full", SURVIVES, ALL, _full_disk, small_disk=True),
    Kind("garbage on every port", SURVIVES, ALL, _garbage),
    Kind("idle connections on every port", SURVIVES, ALL, _idle),
)


def possible(kind: Kind) -> bool:
    """Whether this user may make the fault here."""
    return not kind.small_disk or os.geteuid() == 0


def runs_folder(folder: Path) -> Path:
    """Where the run folder goes; a small disk is mounted there for a full one."""
    runs = folder / "runs"
    runs.mkdir()
    return runs
