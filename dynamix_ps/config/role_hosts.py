"""On which host every role runs. Pure: the launcher and all hosts come to the same result from the same cluster file.

Workers that name a host take a slot there. The others fill the free slots, host by host in the order of the file, so a
worker's rank and host depend on the file alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dynamix_ps.config.schema import OWN_HOST, Cluster, Host, ServerSection

HERE = "localhost"  # name of the only host of a job without `hosts`: the one on which it is launched

_BESIDE = re.compile(r"worker-(0|[1-9][0-9]{0,3})")


@dataclass(frozen=True, slots=True)
class RoleHosts:
    """The name of the host of every role; None where the cluster file has none for it.

    A worker that comes later needs none: `dynamix join --host` names one.
    """

    workers: tuple[str | None, ...]  # by rank
    servers: tuple[str | None, ...]
    home: str | None  # of the scheduler and of the arbitrator


def hosts_of(cluster: Cluster) -> Mapping[str, Host]:
    """The hosts by name; one that has room for all workers where the file names none."""
    return cluster.hosts or {HERE: Host(address=cluster.host, slots=len(cluster.workers))}


def address_of(cluster: Cluster, host: str) -> str:
    """What the file calls the address of a host."""
    return hosts_of(cluster)[host].address or host


def role_hosts(cluster: Cluster) -> RoleHosts:
    """Place all roles. Servers are placed also for data planes that have none."""
    hosts = hosts_of(cluster)
    workers = _worker_hosts(cluster, hosts)
    if not cluster.hosts:
        home: str | None = HERE
    elif "host" in cluster.model_fields_set:
        home = cluster.host if cluster.host in hosts else None
    else:
        home = workers[0]
    return RoleHosts(workers, _server_hosts(cluster, hosts, workers), home)


def awaits_hosts(cluster: Cluster) -> bool:
    """Whether workers that come later have no host, so that `dynamix join --host` names one."""
    placed = zip(cluster.workers, role_hosts(cluster).workers, strict=True)
    return any(host is None and worker.later and worker.host is None for worker, host in placed)


def worker_beside(server: ServerSection) -> int | None:
    """N of a server with `host: worker-N`; None for another host."""
    found = _BESIDE.fullmatch(server.host)
    return int(found.group(1)) if found else None


def _worker_hosts(cluster: Cluster, hosts: Mapping[str, Host]) -> tuple[str | None, ...]:
    free = {name: host.room for name, host in hosts.items()}
    placed: list[str | None] = [None] * len(cluster.workers)
    for named in (True, False):  # those that name a host come first
        for rank, worker in enumerate(cluster.workers):
            if (worker.host is not None) == named:
                wanted = [worker.host] if worker.host is not None else free
                host = next((name for name in wanted if free.get(name, 0) > 0), None)
                if host is not None:
                    free[host] -= 1
                placed[rank] = host
    return tuple(placed)


def _server_hosts(
    cluster: Cluster, hosts: Mapping[str, Host], workers: tuple[str | None, ...]
) -> tuple[str | None, ...]:
    if cluster.servers is None:
        return tuple(name for name in hosts if name in workers)
    idle = [name for name in hosts if name not in workers] if cluster.hosts else list(hosts)
    own = 0
    placed: list[str | None] = []
    for server in cluster.servers:
        beside = worker_beside(server)
        if beside is not None:
            placed.append(workers[beside] if beside < len(workers) else None)
        elif server.host == OWN_HOST:
            placed.append(idle[own % len(idle)] if idle else None)
            own += 1
        else:
            placed.append(server.host if server.host in cluster.hosts else None)
    return tuple(placed)
