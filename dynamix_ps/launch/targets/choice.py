"""Which target reaches the hosts of a job: this process, the batch system around it, or ssh."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from dynamix_ps.addresses import bind_error
from dynamix_ps.config.host_rules import is_loopback
from dynamix_ps.config.resolve import with_places
from dynamix_ps.config.role_hosts import address_of
from dynamix_ps.config.schema import Config, Host
from dynamix_ps.errors import EnvironmentNotReady, UsageError
from dynamix_ps.launch.roles.placement import Placement
from dynamix_ps.launch.roles.plan import cpus_per_worker, hosts_with_roles, spans_hosts
from dynamix_ps.launch.targets.agent_link import ONE_HOST, OwnProcess, Target
from dynamix_ps.launch.targets.command_link import ON_OWN_MACHINE, AgentCommand, Commands
from dynamix_ps.launch.targets.ssh import ssh_command


class Allocation(Protocol):
    """The hosts that a batch system has given the job around this process, and how to reach them."""

    @property
    def name(self) -> str:
        """Name of the system, for messages."""
        ...

    @property
    def starts_own_agent(self) -> bool:
        """Whether the system also starts the agent of this machine, as one of several."""
        ...

    def hosts(self, workers: int, cpus: int = 1) -> dict[str, Host]:
        """The hosts by name, with slots for so many workers of so many CPUs. May have to ask the system for them.

        Raises:
            UsageError: there are too few.
            EnvironmentNotReady: the system cannot be asked, or has none.
        """
        ...

    def reaches(self, host: str) -> bool:
        """Whether the system has given a host of this name."""
        ...

    def agent_command(self, host: str) -> AgentCommand:
        """The command that starts the agent of a host. Raises EnvironmentNotReady."""
        ...


# Folders of this package, which may be missing. `ray_job` in `ray/allocation.py` says from the environment whether Ray
# has started this process, and so on. The first system that has counts: Ray may run within a job of Slurm.
_SYSTEMS = ("kubernetes", "ray", "slurm")


def allocation(environ: Mapping[str, str]) -> Allocation | None:
    """What a batch system has given this job; None without a batch system.

    Raises:
        UsageError: it has started this process in a way in which no job can be launched.
        EnvironmentNotReady: its variables in the environment cannot be understood.
    """
    return next((found for system in _systems() if (found := system(environ)) is not None), None)


def _systems() -> Iterator[Callable[[Mapping[str, str]], Allocation | None]]:
    for name in _SYSTEMS:
        if importlib.util.find_spec(f"{__package__}.{name}"):
            yield getattr(importlib.import_module(f"{__package__}.{name}.allocation"), f"{name}_job")


def allocated_hosts(given: Allocation, config: Config) -> dict[str, Host]:
    """The hosts for a cluster file that names none; empty where the only one is this machine, with all its devices.

    Raises:
        UsageError: there are too few for the workers.
        EnvironmentNotReady: the batch system cannot be asked for them, or has none.
    """
    hosts = given.hosts(len(with_places(config).cluster.workers), cpus_per_worker(config))
    if len(hosts) == 1:
        name, only = next(iter(hosts.items()))
        if only.devices is None and is_own(only.address or name):
            return {}
    return hosts


def target_of(config: Config, placement: Placement, given: Allocation | None = None) -> Target:
    """The target of a job: this process for a job on this machine alone, else what reaches the other machines.

    The batch system reaches the hosts that it has given the job, and ssh reaches others. `given`: the allocation, if
    the caller has it already.

    Raises:
        UsageError: the batch system has started this process in a way in which no job can be launched.
        EnvironmentNotReady: two of the hosts are this machine.
    """
    cluster, hosts = config.cluster, hosts_with_roles(config)
    own = [host for host in hosts if is_own(address_of(cluster, host))]
    if not cluster.hosts or (own and not spans_hosts(config)):
        return OwnProcess(os.environ, placement)
    if len(own) > 1:
        both = " and ".join(f"{host} ({address_of(cluster, host)})" for host in own[:2])
        raise EnvironmentNotReady(f"cluster.hosts: {both} are this machine; write one host, with the slots of both")
    given = given or allocation(os.environ)
    addresses = {name: host.address for name, host in cluster.hosts.items()}

    def command_of(host: str) -> AgentCommand:
        if given is not None and given.reaches(host) and (given.starts_own_agent or host not in own):
            return given.agent_command(host)
        if host in own:
            return ON_OWN_MACHINE
        return ssh_command(host, addresses[host], os.environ)

    def admit(host: str) -> None:
        if given is not None:
            raise UsageError(f"the hosts of the job are those that {given.name} has given it")
        if not spans_hosts(config):
            raise UsageError(ONE_HOST)
        addresses.setdefault(host, None)  # looking a name up might take longer than agents wait to hear of the launcher

    return Commands(command_of, admit)


def is_own(address: str) -> bool:
    """Whether an address is one of this machine."""
    return is_loopback(address) or bind_error(address, 0) is None
