"""A scenario around the roles of a run: on hosts of their own in network namespaces, or all on loopback.

Workers meet at the scheduler's host, where the arbitrator is, too; in a ring both are at worker 0's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.suite.scenario import LinkSettings, Scenario
from benchmarks.testbed.bed import Bed, permitted
from benchmarks.testbed.commands import BedError
from benchmarks.testbed.link import Link
from dynamix_ps.config.schema import Cluster
from dynamix_ps.data_planes import DATA_PLANES
from dynamix_ps.errors import EnvironmentNotReady, TimedOut
from dynamix_ps.launch.roles.placement import Speeds, ThisMachine, inside
from dynamix_ps.launch.roles.plan import RoleSpec

SCHEDULER_PORT, ARBITRATOR_PORT = 23_000, 23_001  # nobody else is in that namespace


class Scheduled(ThisMachine):
    """Roles on this machine's loopback; cores change by the schedule, and training ends at the limit."""

    network, host, interface = "loopback", "127.0.0.1", "lo"

    def __init__(self, scenario: Scenario, limit_s: float) -> None:
        self._scenario = scenario
        self._limit_s = limit_s
        self._cores = scenario.cores
        self.servers = scenario.servers  # for the cluster file
        self.out_of_time = False

    def tick(self, trained_s: float, speeds: Speeds) -> None:
        """Raises TimedOut at the limit, EnvironmentNotReady where speeds cannot change."""
        if trained_s > self._limit_s:
            self.out_of_time = True
            raise TimedOut(f"training did not end within the limit of {self._limit_s:g} s")
        cores = self._scenario.at(trained_s).cores
        if cores is not None and cores != self._cores:
            speeds.change(cores)
            self._cores = cores


class OnHosts(Scheduled):
    """Roles on hosts of a test bed, every worker on one of its own; links change as well."""

    network, interface = "namespaces", "eth0"

    def __init__(self, scenario: Scenario, limit_s: float, bed: Bed, home: str) -> None:
        super().__init__(scenario, limit_s)
        self._bed = bed
        self.servers = scenario.placed_servers
        self.host = bed.address(home)

    def ports(self, cluster: Cluster) -> tuple[int, int]:
        return SCHEDULER_PORT, ARBITRATOR_PORT

    def place(self, role: RoleSpec) -> RoleSpec:
        host = role.beside or role.name
        return inside(role, self._bed.inside(host), self._bed.address(host))

    def tick(self, trained_s: float, speeds: Speeds) -> None:
        super().tick(trained_s, speeds)
        links = self._scenario.at(trained_s).links
        for host in self._scenario.hosts:
            link = link_of(links.get(host, LinkSettings()))
            if link != self._bed.link(host):
                try:
                    self._bed.set_link(host, link)
                except BedError as error:
                    raise EnvironmentNotReady(f"test bed: the link of {host} cannot be changed: {error}") from error


@contextmanager
def placed_for(scenario: Scenario, limit_s: float, comm: str = "byteps") -> Iterator[Scheduled]:
    """Namespaces where they are permitted, else loopback, which limits no link. `comm` as in a cluster file.

    Raises:
        EnvironmentNotReady: the scenario limits links and namespaces are not permitted, or the test bed does not work.
    """
    refusal = permitted()
    if refusal is None:
        try:
            with Bed({host: link_of(scenario.links.get(host, LinkSettings())) for host in scenario.hosts}) as bed:
                yield OnHosts(scenario, limit_s, bed, home=DATA_PLANES[comm].home_role)
        except BedError as error:
            raise EnvironmentNotReady(f"test bed: {error}; `dynamix bench clean` removes what is left over") from error
    elif scenario.needs_namespaces:
        raise EnvironmentNotReady(f"scenario {scenario.name} limits links, which is not possible here: {refusal}")
    else:
        yield Scheduled(scenario, limit_s)


def link_of(settings: LinkSettings) -> Link:
    return Link(
        up_bits_per_s=math.inf if settings.up_mbit is None else 1e6 * settings.up_mbit,
        down_bits_per_s=math.inf if settings.down_mbit is None else 1e6 * settings.down_mbit,
        up_loss=settings.up_loss,
        down_loss=settings.down_loss,
    )
