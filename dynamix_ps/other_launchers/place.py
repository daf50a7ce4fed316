"""Where the processes of a job meet, by the variables of the launcher that has started them. Pure."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from dynamix_ps.errors import UsageError
from worker_hooks.process.launched import StartedProcess

LOOPBACK = "127.0.0.1"
_PORTS = range(20_000, 32_000)  # below those of outgoing connections


@dataclass(frozen=True, slots=True)
class MeetingPlace:
    """What a process knows of its job.

    Attributes:
        launcher: its name, for messages.
        host, port: of the store where the processes meet.
        hosted: whether the launcher hosts that store; if not, rank 0 does.
        starts_again: whether the launcher starts a job again that has failed.
        attempt: how often it has done so for a failure on this host.
        job: the launcher's name for the job; empty: it has none.
    """

    launcher: str
    rank: int
    size: int
    host: str
    port: int
    hosted: bool = False
    starts_again: bool = False
    attempt: int = 0
    job: str = ""


def meeting_place(started: StartedProcess, environ: Mapping[str, str]) -> MeetingPlace:
    """Raises UsageError if a variable is missing or wrong."""
    if started.size_variable == "WORLD_SIZE":
        return _of_torchrun(started, environ)
    if started.size_variable == "SLURM_STEP_NUM_TASKS":
        rank, name = _number(environ, "SLURM_PROCID"), f"{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
        here = LOOPBACK if environ.get("SLURM_STEP_NUM_NODES") == "1" else _first_node(environ)
        return _at(started, environ, rank, here, name)
    if started.size_variable == "OMPI_COMM_WORLD_SIZE":
        rank, name = _number(environ, "OMPI_COMM_WORLD_RANK"), environ.get("PMIX_NAMESPACE", "")
        here = LOOPBACK if environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(started.size) else ""
        return _at(started, environ, rank, here, name)
    if started.size_variable == "PMI_SIZE":
        here = LOOPBACK if environ.get("MPI_LOCALNRANKS") == str(started.size) else ""
        return _at(started, environ, _number(environ, "PMI_RANK"), here, environ.get("PMI_ID", ""))
    raise UsageError(
        f"{started.launcher} started {started.size} processes ({started.size_variable}), and does not tell where they "
        "meet; start them with torchrun, srun or mpirun, or with `dynamix launch -c cluster.yaml -- python script.py`"
    )


def _of_torchrun(started: StartedProcess, environ: Mapping[str, str]) -> MeetingPlace:
    """The variables of torch.distributed, which torchrun, accelerate, Kubernetes and people set.

    A store of ours is beside MASTER_PORT, where the script or its framework may have one.
    """
    rank, port = _number(environ, "RANK"), _number(environ, "MASTER_PORT", most=65_535)
    if rank >= started.size:
        raise UsageError(f"RANK is {rank}, expected less than WORLD_SIZE, which is {started.size}")
    host = environ.get("MASTER_ADDR", "")
    if not host:
        raise UsageError(_missing("MASTER_ADDR", "the address of rank 0's host"))
    hosted = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "")
    return MeetingPlace(
        started.launcher,
        rank,
        started.size,
        host,
        port if hosted else _beside(port),
        hosted,
        attempt.isdecimal(),
        int(attempt) if attempt.isdecimal() else 0,
        environ.get("TORCHELASTIC_RUN_ID", ""),
    )


def _at(started: StartedProcess, environ: Mapping[str, str], rank: int, host: str, name: str) -> MeetingPlace:
    """A job whose launcher names no meeting place: MASTER_ADDR and MASTER_PORT do where they are set."""
    host = environ.get("MASTER_ADDR") or host
    if not host:
        raise UsageError(_missing("MASTER_ADDR", f"the address of rank 0's host; {started.launcher} does not tell it"))
    if environ.get("MASTER_PORT"):
        port = _beside(_number(environ, "MASTER_PORT", most=65_535))
    elif name:
        port = _PORTS[zlib.crc32(name.encode()) % len(_PORTS)]
    else:
        raise UsageError(_missing("MASTER_PORT", "a free port of rank 0's host, the same for all processes"))
    return MeetingPlace(started.launcher, rank, started.size, host, port, job=name)


def _beside(port: int) -> int:
    return port + 1 if port < 65_535 else port - 1


def _first_node(environ: Mapping[str, str]) -> str:
    """The first host of a list as `node[07-09,12],other`."""
    text = environ.get("SLURM_STEP_NODELIST", "")
    found = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\]([^,]*))?", text)
    return "".join(part or "" for part in found.groups()) if found else ""


def _number(environ: Mapping[str, str], name: str, most: int = 100_000) -> int:
    text = environ.get(name, "").strip()
    if not text:
        raise UsageError(_missing(name, f"a number from 0 to {most}"))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= most):
        raise UsageError(f"{name} is {text!r}, expected a number from 0 to {most}")
    return int(text)


def _missing(name: str, expected: str) -> str:
    return f"{name} is not set, and other variables of this launcher are; expected {expected}"
