"""The environment variables of a run: one table, from which the rules about them and their reference derive."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CONFIG = "DYNAMIX_CONFIG"
RUN_DIR = "DYNAMIX_RUN_DIR"
RUN_ID = "DYNAMIX_RUN_ID"
ARBITRATOR = "DYNAMIX_ARBITRATOR"
TOKEN = "DYNAMIX_TOKEN"
TLS = "DYNAMIX_TLS"
RESUME = "DYNAMIX_RESUME"
SLOWDOWN = "DYNAMIX_SLOWDOWN"
REHEARSAL = "DYNAMIX_REHEARSAL"
RATE_TRIAL = "DYNAMIX_RATE_TRIAL"
DATA = "DYNAMIX_DATA"
PROBE = "DYNAMIX_PROBE"
ROLE_NAME = "DYNAMIX_ROLE_NAME"
HOST = "DYNAMIX_HOST"
PODS = "DYNAMIX_PODS"
PODS_SECRET = "DYNAMIX_PODS_SECRET"
CACHE = "DYNAMIX_CACHE"
SHARED_MEMORY = "DYNAMIX_SHARED_MEMORY"
HOST_SUM = "DYNAMIX_HOST_SUM"
WIRE = "DYNAMIX_WIRE"
ELASTIC = "DYNAMIX_ELASTIC"
STARTS = "DYNAMIX_STARTS"
FIRST_WORKERS = "DYNAMIX_FIRST_WORKERS"
PLACE = "DYNAMIX_PLACE"
ATTACHED = "DYNAMIX_ATTACHED"
FORK_SERVER = "DYNAMIX_FORK_SERVER"
PLOTS = "DYNAMIX_PLOTS"
SHM_PREFIX = "BYTEPS_SHM_PREFIX"


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable.

    Attributes:
        meaning: one sentence for the reference.
        of_one_run: the launcher keeps the value of another run away from its roles.
        in_cluster_file: it may stand under `env:` of a cluster file.
        read_in: the modules that read it; for variables of BytePS, the library.
    """

    name: str
    meaning: str
    of_one_run: bool
    in_cluster_file: bool
    read_in: str


def _of_run(name: str, meaning: str, read_in: str) -> Variable:
    return Variable(name, meaning, of_one_run=True, in_cluster_file=False, read_in=read_in)


def _of_user(name: str, meaning: str, read_in: str) -> Variable:
    return Variable(name, meaning, of_one_run=False, in_cluster_file=True, read_in=read_in)


def _of_build(name: str, meaning: str, read_in: str) -> Variable:
    return Variable(name, meaning, of_one_run=False, in_cluster_file=False, read_in=read_in)


_BYTEPS = "BytePS"

VARIABLES: tuple[Variable, ...] = (
    _of_run(
        CONFIG,
        "Path of the cluster file that the role reads. Under another launcher, such as torchrun, rank 0 reads it.",
        "worker_hooks, server_hooks, arbitrator, other_launchers",
    ),
    _of_run(RUN_DIR, "The run folder.", "worker_hooks, server_hooks, arbitrator"),
    _of_run(
        RUN_ID,
        "Identifier of the run, in the names of its shared memory and in every call to the arbitrator.",
        "worker_hooks, server_hooks, arbitrator, cli.bpslaunch, metrics.network.probe.owner",
    ),
    _of_run(ARBITRATOR, "Address of the arbitrator, as host:port.", "worker_hooks, server_hooks, arbitrator"),
    _of_run(
        TOKEN,
        "Secret of the run. It is never sent: roles and the arbitrator prove to each other that they know it, and so "
        "do roles that exchange gradients.",
        f"worker_hooks, server_hooks, arbitrator, {_BYTEPS} as built here",
    ),
    _of_run(
        TLS,
        "Folder with the certificates of the role's host, which encrypt calls to the arbitrator: `ca.crt`, `tls.crt`, "
        "`tls.key`. `off`: calls stay on the machine, or the cluster file says `insecure`.",
        "worker_hooks, server_hooks, arbitrator",
    ),
    _of_run(RESUME, "Checkpoint from which a worker goes on.", "worker_hooks, other_launchers"),
    _of_run(
        SLOWDOWN, "Factor of at least 1 by which the hook stretches compute time, to emulate a speed.", "worker_hooks"
    ),
    _of_run(
        REHEARSAL,
        "Scenario file that gives the time in a rehearsal: the process stands for all workers.",
        "worker_hooks, rehearsal",
    ),
    _of_run(
        RATE_TRIAL, "Factor on the script's learning rate in a rehearsal that is one of a race of rates.", "rehearsal"
    ),
    _of_run(
        ROLE_NAME,
        "Name of the role in reports, e.g. worker-0.",
        "worker_hooks, server_hooks, metrics.network.probe.owner",
    ),
    _of_run(
        HOST, "Name of the role's host in the cluster file; `localhost` where it names none.", "launch.cleanup.release"
    ),
    _of_run(
        PODS,
        "Pods of a Kubernetes job, as host=address:slots, separated by commas, for the launcher in one of them.",
        "launch.targets.kubernetes.allocation",
    ),
    _of_run(
        PODS_SECRET,
        "Folder with the secret of that job: `token`, `ca.crt`, `tls.crt`, `tls.key`.",
        "launch.targets.kubernetes.allocation, cli.agent",
    ),
    _of_run(
        PROBE,
        "Socket of the network probe of the host; `none`: there is no probe. In the shell of `dynamix launch` and "
        "`dynamix probe` it names a probe that runs already.",
        "metrics.network.monitor, launch.host.network_probe, cli.probe",
    ),
    _of_run(
        FORK_SERVER,
        "In the shell of `dynamix launch`: socket of a fork server that runs already, for roles that inherit "
        "the same from it. Unset: each launch has its own.",
        "launch.host.host_agent",
    ),
    _of_run(
        PLOTS,
        "In the shell of `dynamix launch`: `no` ends a run without plots, which take seconds to draw.",
        "launch.job.run",
    ),
    _of_run(
        HOST_SUM,
        "Who sums where all workers are on one host: `workers`, or `server`, which leaves emulated speeds as they are. "
        "Unset: `workers`.",
        "comm.byteps.host_memory",
    ),
    _of_run(
        WIRE,
        "How a worker sends float32 gradients: `float32`, `bf16`, `int8`, or `auto`. Unset: `float32`.",
        "comm.byteps.comm, comm.ring.gloo",
    ),
    _of_run(
        ELASTIC,
        "1: sums outlive a lost worker or server; those over BytePS use no shared memory then. The same for all roles.",
        f"comm.plane, comm.ring.gloo, {_BYTEPS} as built here",
    ),
    _of_run(
        STARTS,
        "How often a worker of an elastic job was started before. Above 0: it comes while the others train.",
        "comm.plane, worker_hooks.membership.member_process",
    ),
    _of_run(
        FIRST_WORKERS,
        "How many of the workers an elastic job begins with, those with the lowest ranks. Unset: all. The same for all "
        "roles.",
        f"comm.plane, {_BYTEPS} as built here",
    ),
    _of_run(PLACE, "Folder in which the process that is the worker leaves its number.", "worker_hooks.process.place"),
    _of_run(
        ATTACHED,
        "Number of the process that is the worker, which sets it. Processes that inherit it cannot attach.",
        "worker_hooks.process.place",
    ),
    _of_user(
        SHARED_MEMORY,
        "0: roles on one host exchange gradients by TCP. 1, or unset: by shared memory. "
        "Under `env` it holds for all roles.",
        "comm.byteps.host_memory",
    ),
    _of_user(DATA, "Folder with data sets.", "benchmarks.workloads, launch.preflight.doctor"),
    _of_user(
        CACHE, "Folder for downloads and built wheels. Unset: `dynamix` in the user's cache folder.", "config.variables"
    ),
    _of_build("DYNAMIX_BUILD_JOBS", "Number of compilers that run at once while BytePS is built.", "byteps_build"),
    _of_build("DYNAMIX_WITHOUT_SERVER", "1: the build of BytePS leaves its server out.", "byteps_build"),
    _of_run("DMLC_ROLE", "Role of the process: scheduler, server or worker.", f"{_BYTEPS}, config.role_environment"),
    _of_run("DMLC_NUM_WORKER", "Number of workers.", f"{_BYTEPS}, config.role_environment"),
    _of_run(
        "DMLC_NUM_SERVER",
        "Number of servers; 0 where the data plane has none.",
        f"{_BYTEPS}, config.role_environment, arbitrator",
    ),
    _of_run("DMLC_WORKER_ID", "Rank of a worker, from 0.", f"{_BYTEPS}, config.role_environment"),
    _of_run(
        "DMLC_SERVER_ID",
        "Number of a server, from 0. Unset on all of them: by their addresses.",
        f"{_BYTEPS} as built here, server_hooks.membership",
    ),
    _of_run(
        "DMLC_PS_ROOT_URI",
        "Host on which the roles find each other.",
        f"{_BYTEPS}, comm.ring.gloo, config.role_environment",
    ),
    _of_run(
        "DMLC_PS_ROOT_PORT",
        "Port on which the roles find each other.",
        f"{_BYTEPS}, comm.ring.gloo, config.role_environment",
    ),
    _of_run("DMLC_NODE_HOST", "Address under which the other roles reach this one.", f"{_BYTEPS}, comm.ring.gloo"),
    _of_run(
        "BYTEPS_FORCE_DISTRIBUTED",
        "1: a single worker also uses scheduler and server.",
        f"{_BYTEPS}, config.role_environment",
    ),
    _of_run("BYTEPS_LOCAL_RANK", "Number of a process among those of its worker, from 0.", _BYTEPS),
    _of_run("BYTEPS_LOCAL_SIZE", "Number of processes of a worker.", _BYTEPS),
    _of_run("BYTEPS_GLOBAL_RANK", "Rank of a process among all, in place of the one that BytePS computes.", _BYTEPS),
    _of_run("BYTEPS_SOCKET_PATH", "Folder for the sockets between the processes of a worker.", _BYTEPS),
    _of_run(SHM_PREFIX, "First part of the names of a worker's shared memory.", f"{_BYTEPS} as built here"),
    _of_run("BYTEPS_ENABLE_ASYNC", "1: servers do not wait for all workers, so that sums are not exact.", _BYTEPS),
    Variable(
        "NVIDIA_VISIBLE_DEVICES",
        "GPUs of a worker for containers and BytePS. The launcher deals those in its own shell out to the workers.",
        of_one_run=False,
        in_cluster_file=False,
        read_in="CUDA, cli.bpslaunch",
    ),
    _of_user(
        "CUDA_VISIBLE_DEVICES",
        "GPUs that CUDA shows to a process. The launcher shows one to each of several workers of a host.",
        "CUDA, launch.roles.devices",
    ),
    _of_user(
        "CUDA_DEVICE_ORDER",
        "What numbers of GPUs mean; the launcher sets PCI_BUS_ID, as in nvidia-smi, where it gives them out by number.",
        "CUDA",
    ),
    _of_user("BYTEPS_NUMA_ON", "1: the processes of a worker are bound to cores.", "cli.bpslaunch"),
    _of_user("BYTEPS_VISIBLE_CPU_CORES", "Cores of each process of a worker, e.g. 0-3:4-7.", "launch.host.affinity"),
    _of_user("BYTEPS_CPU_BLACKLIST", "Cores to which no process of a worker is bound.", "launch.host.affinity"),
    _of_user("BYTEPS_SERVER_ENGINE_THREAD", "Threads that sum in a server; the launcher sets 1 if unset.", _BYTEPS),
    _of_user("BYTEPS_LOG_LEVEL", "Log level of BytePS; the launcher sets WARNING if unset.", _BYTEPS),
)

OF_ONE_RUN = frozenset(variable.name for variable in VARIABLES if variable.of_one_run)
_NOT_IN_CLUSTER_FILE = frozenset(variable.name for variable in VARIABLES if not variable.in_cluster_file)


def allowed_in_cluster_file(name: str) -> bool:
    """Whether a cluster file may set this variable for its workers. All of ps-lite, DMLC_*, belong to the launcher."""
    return name not in _NOT_IN_CLUSTER_FILE and not name.startswith("DMLC_")


def get(name: str, default: str | None = None) -> str | None:
    """Value of an environment variable; an empty value counts as not set."""
    return os.environ.get(name) or default


def home_dir() -> Path:
    """The user's home folder; the root folder where this user id has none, as in a container."""
    home = os.path.expanduser("~")
    return Path(home if os.path.isabs(home) else "/")


def cache_dir() -> str:
    """Folder for what outlives a checkout: $DYNAMIX_CACHE, else $XDG_CACHE_HOME/dynamix, else ~/.cache/dynamix."""
    base = get("XDG_CACHE_HOME", str(home_dir() / ".cache")) or ""
    return get(CACHE, os.path.join(base, "dynamix")) or ""
