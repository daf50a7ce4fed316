"""How this process was started: by which launcher, as which of how many processes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dynamix_ps.config import variables
from dynamix_ps.errors import UsageError

_CONNECTION = "DMLC_NUM_WORKER, DMLC_WORKER_ID, DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT"


class _Launcher(NamedTuple):
    """A launcher that starts one process per worker, by the variables that it sets."""

    name: str
    size: str  # number of processes
    ranks: tuple[str, ...]  # number of this process; any of them


_LAUNCHERS = (
    _Launcher("torchrun", "WORLD_SIZE", ("RANK", "LOCAL_RANK")),
    _Launcher("mpirun (Open MPI)", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_RANK",)),
    _Launcher("horovodrun", "HOROVOD_SIZE", ("HOROVOD_RANK",)),
    _Launcher("srun", "SLURM_STEP_NUM_TASKS", ("SLURM_PROCID",)),  # before the size of the whole allocation
    _Launcher("srun", "SLURM_NTASKS", ("SLURM_PROCID",)),
    _Launcher("mpirun", "PMI_SIZE", ("PMI_RANK",)),
)
# A process that one of them has started passes these on to what it starts itself.
LAUNCHER_VARIABLES = frozenset(name for launcher in _LAUNCHERS for name in (launcher.size, *launcher.ranks))


class StartedProcess(NamedTuple):
    """A process that another launcher than ours has started.

    Attributes:
        launcher: its name, for messages.
        size: how many processes it has started.
        size_variable: which variable says so.
    """

    launcher: str
    size: int
    size_variable: str


def started_elsewhere(environ: Mapping[str, str]) -> StartedProcess | None:
    """What another launcher says of this process; None: none has started it, or ours has."""
    if environ.get("DMLC_ROLE"):
        return None
    for launcher in _LAUNCHERS:
        processes = _count(environ, launcher.size)
        if processes and any(environ.get(rank) for rank in launcher.ranks):
            return StartedProcess(launcher.name, processes, launcher.size)
    return None


def check_connected(environ: Mapping[str, str]) -> None:
    """Raises UsageError if another launcher started several processes and nothing connects them.

    Call it where the data plane has no network: each process would be a training of its own.
    """
    if _count(environ, "DMLC_NUM_WORKER") > 1:
        raise UsageError(
            f"DMLC_NUM_WORKER is {environ['DMLC_NUM_WORKER']} but nothing connects the workers: each would be a "
            "training of its own; set DMLC_ROLE=worker and a `comm` with a network in the cluster file (byteps or gloo)"
        )
    started = started_elsewhere(environ)
    if started is not None and started.size > 1:
        name, processes, variable = started
        raise UsageError(
            f"{name} started {processes} processes ({variable}) that nothing connects: each "
            "would be a training of its own; start the script with `dynamix launch -c cluster.yaml -- python "
            f"script.py`, or give every process DMLC_ROLE=worker, {_CONNECTION}; {variable}=1 allows "
            "trainings that have nothing to do with each other"
        )


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() else 0


def fixed_sizes_note(environ: Mapping[str, str]) -> str | None:
    """What a worker of a cluster says when it has no cluster file; none where it has one, or is no such worker."""
    if environ.get("DMLC_ROLE") != "worker" or environ.get(variables.CONFIG):
        return None
    return (
        f"batch sizes stay fixed: this worker has no cluster file; set {variables.CONFIG}=cluster.yaml and "
        f"{variables.ARBITRATOR} for all roles, or start the job with `dynamix launch -c cluster.yaml`"
    )


def waiting_note(environ: Mapping[str, str], waited_s: float) -> str:
    """What a worker says while it waits for the others to join."""
    workers, rank = environ.get("DMLC_NUM_WORKER", "?"), environ.get("DMLC_WORKER_ID", "?")
    root = f"{environ.get('DMLC_PS_ROOT_URI', '?')}:{environ.get('DMLC_PS_ROOT_PORT', '?')}"
    return (
        f"worker {rank} has waited {waited_s:.0f} s for the other roles of this job at {root}; "
        f"is each of its {workers} workers started, with a DMLC_WORKER_ID of its own, and the scheduler and the "
        "servers if comm is byteps?"
    )
