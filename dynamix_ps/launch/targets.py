"""Which target reaches the hosts of a job."""

from __future__ import annotations

import os

from dynamix_ps.addresses import bind_error
from dynamix_ps.config.host_rules import is_loopback
from dynamix_ps.config.role_hosts import address_of
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.launch.agent_link import OwnProcess, Target
from dynamix_ps.launch.command_link import ON_OWN_MACHINE, AgentCommand, Commands
from dynamix_ps.launch.placement import Placement
from dynamix_ps.launch.plan import hosts_with_roles
from dynamix_ps.launch.ssh import ssh_command


def target_of(config: Config, placement: Placement) -> Target:
    """This process for a job on this machine alone; otherwise ssh to those hosts that are other machines.

    Raises:
        EnvironmentNotReady: two of the hosts are this machine.
    """
    cluster, hosts = config.cluster, hosts_with_roles(config)
    own = [host for host in hosts if _is_own(address_of(cluster, host))]
    if not cluster.hosts or (own and len(hosts) == 1):
        return OwnProcess(os.environ, placement)
    if len(own) > 1:
        both = " and ".join(f"{host} ({address_of(cluster, host)})" for host in own[:2])
        raise EnvironmentNotReady(f"cluster.hosts: {both} are this machine; write one host, with the slots of both")

    def command_of(host: str) -> AgentCommand:
        return ON_OWN_MACHINE if host in own else ssh_command(host, cluster.hosts[host].address, os.environ)

    return Commands(command_of)


def _is_own(address: str) -> bool:
    """Whether an address is one of this machine."""
    return is_loopback(address) or bind_error(address, 0) is None
