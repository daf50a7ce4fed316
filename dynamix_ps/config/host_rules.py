"""Rules about the hosts of a cluster file: their names and addresses, and room for every role. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator

from dynamix_ps.config.role_hosts import RoleHosts, awaits_hosts, hosts_of, role_hosts, worker_beside
from dynamix_ps.config.schema import OWN_HOST, Cluster, Config
from dynamix_ps.config.validate import BrokenRule
from dynamix_ps.config.yaml_lines import Path

HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*|[0-9A-Fa-f]*:[0-9A-Fa-f:.]+")  # or an IPv6 address

_HOSTS: Path = ("cluster", "hosts")
_COUNT: Path = ("cluster", "workers", "count")  # known even when a key of a worker is wrong


def host_findings(config: Config) -> Iterator[BrokenRule]:
    """Every broken rule about hosts."""
    cluster = config.cluster
    placed = role_hosts(cluster)
    yield from _names(cluster)
    yield from _addresses(cluster)
    yield from _workers(cluster, placed)
    yield from _servers(cluster, placed)
    yield from _home(config, placed)


def _names(cluster: Cluster) -> Iterator[BrokenRule]:
    for name in cluster.hosts:
        if not HOST_NAME.fullmatch(name):
            yield BrokenRule((*_HOSTS, name), "is no name or address of a host, such as node-1 or 10.0.0.1", name)
        elif name == OWN_HOST or re.fullmatch(r"worker-[0-9]+", name):
            message = f"has another meaning in cluster.servers ({OWN_HOST}, worker-N); name the host otherwise"
            yield BrokenRule((*_HOSTS, name), message, name)


def _addresses(cluster: Cluster) -> Iterator[BrokenRule]:
    """Each must mean one host, seen from every other."""
    first: dict[str, str] = {}
    for name, host in cluster.hosts.items():
        address = host.address or name
        where: Path = (*_HOSTS, name) if host.address is None else (*_HOSTS, name, "address")
        if len(cluster.hosts) == 1 and awaits_hosts(cluster) and not _is_reachable(address):
            message = "must be an IP address by which hosts that join reach this one; or set slots, for all workers"
            yield BrokenRule(where, message, address, (_COUNT,))
        elif len(cluster.hosts) > 1 and is_loopback(address):
            message = f"means another machine on every one of the {len(cluster.hosts)} hosts; give the address that the"
            yield BrokenRule(where, f"{message} others reach, such as 10.0.0.1", address)
        elif address in first:
            message = f"is also the address of {first[address]}; write one host, with the slots of both"
            yield BrokenRule(where, message, address, ((*_HOSTS, first[address]),))
        first.setdefault(address, name)


def is_loopback(address: str) -> bool:
    """Whether an address or name means the machine that uses it, whichever it is."""
    if address == "localhost" or address.endswith(".localhost"):
        return True
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return False
    return known.is_loopback or known.is_unspecified


def _is_reachable(address: str) -> bool:
    """Whether it is an IP address, and not of the loopback."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return not is_loopback(address)


def _workers(cluster: Cluster, placed: RoleHosts) -> Iterator[BrokenRule]:
    room = {name: host.room for name, host in hosts_of(cluster).items()}
    unplaced = [rank for rank, host in enumerate(placed.workers) if host is None]
    for rank in unplaced:
        name, path = cluster.workers[rank].host, ("cluster", "workers", rank, "host")
        if name is not None and name not in cluster.hosts:
            yield BrokenRule(path, _unknown(cluster), name, (_HOSTS,))
        elif name is not None:
            asking = Counter(worker.host for worker in cluster.workers)[name]
            message = f"has {_slots(room[name])}, and {asking} workers name it; set cluster.hosts.{name}.slots"
            yield BrokenRule(path, message, name, ((*_HOSTS, name), _COUNT))
    # One that comes later may get its host from `dynamix join --host`.
    homeless = [rank for rank in unplaced if cluster.workers[rank].host is None and not cluster.workers[rank].later]
    if homeless:
        message = f"have {_slots(sum(room.values()))} for {len(cluster.workers)} workers: no room for worker"
        ranks = ", ".join(map(str, homeless[:8])) + (", ..." if len(homeless) > 8 else "")
        got = ", ".join(f"{name}: {slots}" for name, slots in room.items())
        yield BrokenRule(_HOSTS, f"{message} {ranks}; set slots, or add a host", got, (_COUNT, *_names_of(cluster)))


def _servers(cluster: Cluster, placed: RoleHosts) -> Iterator[BrokenRule]:
    for index, (server, host) in enumerate(zip(cluster.servers or (), placed.servers, strict=False)):
        if host is not None:
            continue
        path: Path = ("cluster", "servers", index, "host")
        uses: tuple[Path, ...] = (_COUNT, _HOSTS, *_names_of(cluster))
        beside = worker_beside(server)
        if beside is not None and beside >= len(cluster.workers):
            message = f"names a worker that is not there; the last one is worker-{len(cluster.workers) - 1}"
            yield BrokenRule(path, message, server.host, uses)
        elif server.host == OWN_HOST:
            message = "needs a host that runs no worker; add one with slots: 0, or use servers: auto"
            yield BrokenRule(path, message, server.host, uses)
        elif beside is None:
            yield BrokenRule(path, f"{_unknown(cluster)}; or worker-N, or {OWN_HOST}", server.host, uses)
        elif cluster.workers[beside].later:
            yield BrokenRule(path, "names a worker that has no host when the job begins", server.host, uses)


def _home(config: Config, placed: RoleHosts) -> Iterator[BrokenRule]:
    cluster = config.cluster
    if not cluster.hosts or "host" not in cluster.model_fields_set:
        return
    path: Path = ("cluster", "host")
    if placed.home is None:
        message = f"{_unknown(cluster)}; or leave it out, which means the host of worker 0"
        yield BrokenRule(path, message, cluster.host, (_HOSTS,))
    elif config.data_plane.is_ring and placed.home != placed.workers[0]:
        message = f"must be the host of worker 0 with comm: {config.comm}, where the workers meet; leave it out"
        yield BrokenRule(path, message, cluster.host, (("comm",), _HOSTS, ("cluster", "workers")))


def _names_of(cluster: Cluster) -> list[Path]:
    """Keys that decide which worker is where."""
    return [("cluster", "workers", rank, "host") for rank in range(len(cluster.workers))]


def _unknown(cluster: Cluster) -> str:
    if not cluster.hosts:
        return "names a host, and cluster.hosts names none; add it there"
    names = list(cluster.hosts)
    return f"is no host of cluster.hosts, which has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"


def _slots(number: int) -> str:
    return "1 slot" if number == 1 else f"{number} slots"
