"""Writes out what a cluster file leaves open about hosts, so that all roles read one answer. Pure."""

from __future__ import annotations

from dynamix_ps.apportion import apportion
from dynamix_ps.config.role_hosts import hosts_of, role_hosts
from dynamix_ps.config.schema import Config, Server


def resolved(config: Config) -> Config:
    """The same job with the host and the first size of every role written out; as it is if it names no hosts.

    `config` must break no rule.
    """
    cluster = config.cluster
    if not cluster.hosts:
        return config
    placed, sizes = role_hosts(cluster), first_sizes(config)
    workers = tuple(
        worker.model_copy(update={"host": host, "batch": size})
        for worker, host, size in zip(cluster.workers, placed.workers, sizes, strict=True)
    )
    servers = tuple(Server.model_validate({"host": host}) for host in placed.servers)
    changes = {"host": placed.home, "servers": servers, "workers": workers}
    return config.model_copy(update={"cluster": cluster.model_copy(update=changes)})


def first_sizes(config: Config) -> tuple[int, ...]:
    """First batch size of every worker: its own, or its share of those that are not set, by the speed of its host."""
    cluster = config.cluster
    hosts, placed = hosts_of(cluster), role_hosts(cluster).workers
    free = [rank for rank, worker in enumerate(cluster.workers) if "batch" not in worker.model_fields_set]
    sizes = list(config.initial_sizes())
    speeds = [hosts[name].speed for rank in free if (name := placed[rank]) is not None]
    if len(set(speeds)) > 1:
        bounds = [config.bounds(rank) for rank in free]
        total = sum(sizes[rank] for rank in free)
        parts = apportion(total, speeds, [max(1, low) for low, _ in bounds], [high for _, high in bounds])
        for rank, part in zip(free, parts, strict=True):
            sizes[rank] = part
    return tuple(sizes)
