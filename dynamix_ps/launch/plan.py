"""The processes of a cluster: name, command line and environment of every role. Pure."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dynamix_ps.addresses import host_port
from dynamix_ps.config import variables
from dynamix_ps.config.schema import OWN_HOST, Config

Role = Literal["scheduler", "server", "worker", "arbitrator"]


@dataclass(frozen=True, slots=True)
class RunPlace:
    """What one run gets on this machine, beside its configuration."""

    run_id: str
    token: str
    config_file: Path  # what the roles read
    run_dir: Path
    scratch: Path  # short path for sockets
    shm_prefix: str  # the beginning of the names of all shared-memory segments of this run
    cwd: Path
    port: int
    arbitrator_port: int
    cores: int
    slowdowns: tuple[float, ...] | None = None  # per worker; none where speeds are not emulated by the hook
    speeds_emulated: bool = False
    resume: Path | None = None
    probe: str | None = None  # socket of the network probe, or "none"; none where nobody is to ask one


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """One process to start. `env` is what it gets on top of the launcher's own environment.

    `beside`: name of the role whose host it shares; none: it has a host of its own, where there is one.
    """

    name: str
    role: Role
    argv: tuple[str, ...]
    env: Mapping[str, str]
    rank: int | None = None
    beside: str | None = None


def plan_roles(config: Config, place: RunPlace, environ: Mapping[str, str], python: str) -> tuple[RoleSpec, ...]:
    """All roles of a cluster on this machine: scheduler and servers where the data plane has them, else an arbitrator.

    `environ` is the launcher's environment; tuning variables that a user has set there keep their values.
    """
    common = _common_env(config, place, environ, python)
    launcher = (python, "-m", "dynamix_ps.cli.bpslaunch")
    roles = _roles(config, place, environ, common, launcher)
    return tuple(replace(role, env={**role.env, variables.ROLE_NAME: role.name}) for role in roles)


def _roles(
    config: Config, place: RunPlace, environ: Mapping[str, str], common: dict[str, str], launcher: tuple[str, ...]
) -> Iterator[RoleSpec]:
    if config.data_plane.has_servers:
        yield RoleSpec("scheduler", "scheduler", launcher, {**common, "DMLC_ROLE": "scheduler"})
        for index, host in enumerate(config.cluster.server_hosts):
            env, beside = {**common, "DMLC_ROLE": "server"}, None if host == OWN_HOST else host
            yield RoleSpec(f"server-{index}", "server", launcher, env, beside=beside)
    elif config.mode != "off":
        watch = (launcher[0], "-m", "server_hooks.arbitrator_watch")
        yield RoleSpec("arbitrator", "arbitrator", watch, common, beside=config.data_plane.home_role)
    for rank in range(len(config.cluster.workers)):
        added = {**common, **_worker_env(config, place, environ, rank)}
        yield RoleSpec(f"worker-{rank}", "worker", (*launcher, *config.command), added, rank)


def _common_env(config: Config, place: RunPlace, environ: Mapping[str, str], python: str) -> dict[str, str]:
    cluster = config.cluster
    added = {
        "PATH": os.pathsep.join(filter(None, (os.path.dirname(python), environ.get("PATH", os.defpath)))),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(place.cwd), environ.get("PYTHONPATH", "")))),
        "PYTHONUNBUFFERED": "1",
        "DMLC_NUM_WORKER": str(len(cluster.workers)),
        "DMLC_NUM_SERVER": str(len(cluster.server_hosts) if config.data_plane.has_servers else 0),
        "DMLC_PS_ROOT_URI": cluster.host,
        "DMLC_PS_ROOT_PORT": str(place.port),
        "DMLC_NODE_HOST": cluster.host,
        "BYTEPS_NUMA_ON": environ.get("BYTEPS_NUMA_ON", "0"),
        "BYTEPS_SERVER_ENGINE_THREAD": environ.get("BYTEPS_SERVER_ENGINE_THREAD", "1"),
        "BYTEPS_LOG_LEVEL": environ.get("BYTEPS_LOG_LEVEL", "WARNING"),
        variables.CONFIG: str(place.config_file),
        variables.RUN_DIR: str(place.run_dir),
        variables.RUN_ID: place.run_id,
        variables.TOKEN: place.token,
    }
    if config.data_plane.has_servers:
        added["BYTEPS_FORCE_DISTRIBUTED"] = "1"  # otherwise a single worker ignores scheduler and server
        # A sum must not use up the quota of a worker whose speed is emulated.
        added[variables.HOST_SUM] = "server" if place.speeds_emulated else "workers"
        if variables.SHARED_MEMORY in config.env:  # servers must know it too
            added[variables.SHARED_MEMORY] = config.env[variables.SHARED_MEMORY]
    if place.probe is not None:
        added[variables.PROBE] = place.probe
    if config.mode != "off":
        added[variables.ARBITRATOR] = host_port(cluster.host, place.arbitrator_port)
    return added


def _worker_env(config: Config, place: RunPlace, environ: Mapping[str, str], rank: int) -> dict[str, str]:
    workers = len(config.cluster.workers)
    devices = [device for device in environ.get("NVIDIA_VISIBLE_DEVICES", "").split(",") if device] or ["0"]
    added = {
        "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", str(max(1, place.cores // workers))),
        **config.env,
        "DMLC_ROLE": "worker",
        "DMLC_WORKER_ID": str(rank),
        "NVIDIA_VISIBLE_DEVICES": devices[rank % len(devices)],
        "BYTEPS_SOCKET_PATH": str(place.scratch / f"w{rank}"),
        variables.SHM_PREFIX: f"{place.shm_prefix}{rank}_",
    }
    if config.data_plane.has_servers:
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
    """One line that would start this role from a shell, which keeps the token out of every command line."""
    assignments = (f"{name}={shlex.quote(value)}" for name, value in sorted(spec.env.items()))
    return " ".join((*assignments, shlex.join(spec.argv)))
