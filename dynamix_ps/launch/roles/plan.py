"""The processes of a job: name, host, command line and environment of every role. Pure."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dynamix_ps import own_process
from dynamix_ps.addresses import host_port
from dynamix_ps.certificates import OFF
from dynamix_ps.config import variables
from dynamix_ps.config.role_hosts import HERE, address_of, awaits_hosts, hosts_of, role_hosts, worker_beside
from dynamix_ps.config.schema import Config, ServerSection
from dynamix_ps.launch.roles.devices import visible_devices

Role = Literal["scheduler", "server", "worker", "arbitrator"]


@dataclass(frozen=True, slots=True)
class JobRole:
    """One role of a job.

    `host`: empty for a worker that gets one when it joins. `beside`: name of the role whose host this role shares;
    None: it shares none. `later`: the launcher does not start it with the others.
    """

    name: str
    role: Role
    rank: int | None = None
    host: str = HERE
    beside: str | None = None
    later: bool = False

    @property
    def number(self) -> int | None:
        """The number of a worker or server among its kind; None for other roles."""
        return int(self.name.rpartition("-")[2]) if self.role in ("worker", "server") else None


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Folders, ports and devices of one run on one host."""

    run_id: str
    token: str
    config_file: Path  # what the roles read
    run_dir: Path
    scratch: Path  # short path for sockets
    shm_prefix: str  # the beginning of the names of all shared-memory segments of this run
    port: int
    arbitrator_port: int
    cores: int
    gpus: int = 0
    slowdowns: tuple[float, ...] | None = None  # per worker; none where speeds are not emulated by the hook
    speeds_emulated: bool = False
    resume: Path | None = None
    probe: str | None = None  # socket of the network probe, or "none"; none where nobody is to ask one
    certificates: Path | None = None  # folder with those of the host; none where calls are not encrypted
    host: str = HERE
    addresses: Mapping[str, str] = field(default_factory=dict)  # of the hosts, by name; others have that of the file


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """One process to start. `env` comes on top of the environment of the starting process."""

    name: str
    role: Role
    argv: tuple[str, ...]
    env: Mapping[str, str]
    rank: int | None = None
    beside: str | None = None
    later: bool = False  # it is not started with the others


def job_roles(config: Config) -> tuple[JobRole, ...]:
    """All roles of a job: scheduler and servers if the data plane has servers, else an arbitrator, and the workers."""
    return tuple(_job_roles(config))


def hosts_with_roles(config: Config) -> tuple[str, ...]:
    """Names of the hosts on which a job has roles, in the order of its roles."""
    return tuple(dict.fromkeys(role.host for role in job_roles(config) if role.host))


def spans_hosts(config: Config) -> bool:
    """Whether a job is on several hosts, or others may join it."""
    return len(hosts_with_roles(config)) > 1 or awaits_hosts(config.cluster)


def threads_of_worker(config: Config) -> int:
    """Threads with which each worker computes: OMP_NUM_THREADS under `env` in the cluster file, or 1."""
    threads = config.env.get("OMP_NUM_THREADS", "")
    return int(threads) if threads.isdecimal() and 0 < int(threads) < 10_000 else 1


def cpus_per_worker(config: Config) -> int:
    """CPUs per worker to request from a batch system: one per thread, and one more where servers run."""
    return threads_of_worker(config) + config.data_plane.has_servers


def _job_roles(config: Config) -> Iterator[JobRole]:
    placed = role_hosts(config.cluster)
    home = _known(placed.home)
    if config.data_plane.has_servers:
        yield JobRole("scheduler", "scheduler", host=home)
        entries: Sequence[ServerSection | None] = config.cluster.servers or (None,) * len(placed.servers)
        for index, (entry, host) in enumerate(zip(entries, placed.servers, strict=True)):
            beside = 0 if entry is None else worker_beside(entry)
            name = None if beside is None else f"worker-{beside}"
            yield JobRole(f"server-{index}", "server", host=_known(host), beside=name)
    elif config.has_arbitrator:
        yield JobRole("arbitrator", "arbitrator", host=home, beside=config.data_plane.home_role)
    for rank, host in enumerate(placed.workers):
        later = rank in config.later
        yield JobRole(f"worker-{rank}", "worker", rank, (host or "") if later else _known(host), later=later)


def _known(host: str | None) -> str:
    assert host is not None, "the rules of the cluster file place every role"
    return host


def plan_roles(config: Config, place: RunPlace, environ: Mapping[str, str], python: str) -> tuple[RoleSpec, ...]:
    """The roles of one host.

    `environ` is the environment on this host; tuning variables that the user has set keep their values.
    """
    common = _common_env(config, place, environ, python)
    launcher = own_process.command("dynamix_ps.cli.bpslaunch", python=python)
    here = [role for role in job_roles(config) if role.host == place.host]
    ranks = [role.rank for role in here if role.rank is not None]
    specs: list[RoleSpec] = []
    for role in here:
        argv, env = launcher, {**common, variables.ROLE_NAME: role.name}
        if role.role == "arbitrator":
            argv = own_process.command("server_hooks.arbitrator_watch", python=python)
        else:
            env["DMLC_ROLE"] = role.role
        if role.role == "server":
            env["DMLC_SERVER_ID"] = str(role.number)
        if role.number is not None and config.is_elastic:
            env[variables.STARTS] = "0"
        if role.rank is not None:
            argv = (*launcher, *config.command)
            env |= _worker_env(config, place, environ, role.rank, ranks)
        specs.append(RoleSpec(role.name, role.role, argv, env, role.rank, role.beside, role.later))
    return tuple(specs)


def _common_env(config: Config, place: RunPlace, environ: Mapping[str, str], python: str) -> dict[str, str]:
    cluster, placed = config.cluster, role_hosts(config.cluster)
    home, here = _address(config, place, _known(placed.home)), _address(config, place, place.host)
    added = {
        "PATH": os.pathsep.join(filter(None, (os.path.dirname(python), environ.get("PATH", os.defpath)))),
        "PYTHONUNBUFFERED": "1",
        "DMLC_NUM_WORKER": str(len(cluster.workers)),
        "DMLC_NUM_SERVER": str(len(placed.servers) if config.data_plane.has_servers else 0),
        "DMLC_PS_ROOT_URI": home,
        "DMLC_PS_ROOT_PORT": str(place.port),
        "DMLC_NODE_HOST": here,
        "BYTEPS_NUMA_ON": environ.get("BYTEPS_NUMA_ON", "0"),
        "BYTEPS_SERVER_ENGINE_THREAD": environ.get("BYTEPS_SERVER_ENGINE_THREAD", "1"),
        "BYTEPS_LOG_LEVEL": environ.get("BYTEPS_LOG_LEVEL", "WARNING"),
        variables.CONFIG: str(place.config_file),
        variables.RUN_DIR: str(place.run_dir),
        variables.RUN_ID: place.run_id,
        variables.TOKEN: place.token,
        variables.HOST: place.host,
    }
    if config.data_plane.has_servers:
        added["BYTEPS_FORCE_DISTRIBUTED"] = "1"  # otherwise a single worker ignores scheduler and server
        # A sum must not use up the quota of a worker whose speed is emulated.
        added[variables.HOST_SUM] = "server" if place.speeds_emulated else "workers"
        if variables.SHARED_MEMORY in config.env:  # servers must know it too
            added[variables.SHARED_MEMORY] = config.env[variables.SHARED_MEMORY]
    if config.is_elastic:
        added[variables.ELASTIC] = "1"
    if config.later:
        added[variables.FIRST_WORKERS] = str(config.first_workers)
    if place.probe is not None:
        added[variables.PROBE] = place.probe
    if config.has_arbitrator:
        added[variables.ARBITRATOR] = host_port(home, place.arbitrator_port)
        added[variables.TLS] = str(place.certificates or OFF)
    return added


def _address(config: Config, place: RunPlace, host: str) -> str:
    return place.addresses.get(host) or address_of(config.cluster, host)


def _worker_env(
    config: Config, place: RunPlace, environ: Mapping[str, str], rank: int, ranks: list[int]
) -> dict[str, str]:
    """`ranks`: of all workers on this host."""
    devices = [device for device in environ.get("NVIDIA_VISIBLE_DEVICES", "").split(",") if device] or ["0"]
    named = hosts_of(config.cluster)[place.host].devices
    devices = [str(number) for number in named or ()] or devices
    added = {
        **visible_devices(ranks.index(rank), len(ranks), named, place.gpus, environ),
        "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", str(max(1, place.cores // len(ranks)))),
        **config.env,
        "DMLC_ROLE": "worker",
        "DMLC_WORKER_ID": str(rank),
        "NVIDIA_VISIBLE_DEVICES": devices[ranks.index(rank) % len(devices)],
        "BYTEPS_SOCKET_PATH": str(place.scratch / f"w{rank}"),
        variables.PLACE: str(place.scratch / f"w{rank}"),
        variables.SHM_PREFIX: f"{place.shm_prefix}{rank}_",
    }
    if config.data_plane.uses_network:
        added[variables.WIRE] = config.cluster.wire
    if place.slowdowns is not None and place.slowdowns[rank] > 1:
        added[variables.SLOWDOWN] = f"{place.slowdowns[rank]:g}"
    if place.resume is not None:
        added[variables.RESUME] = str(place.resume)
    return added


def role_environment(spec: RoleSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a role: the launcher's, without variables of another run, and the role's own."""
    kept = {name: value for name, value in environ.items() if name not in variables.OF_ONE_RUN}
    return {**kept, **spec.env}


def as_shell(spec: RoleSpec) -> str:
    """One line that starts this role from a shell and keeps the token out of every command line."""
    assignments = (f"{name}={shlex.quote(value)}" for name, value in sorted(spec.env.items()))
    return " ".join((*assignments, shlex.join(spec.argv)))
