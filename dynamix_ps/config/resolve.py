"""Writes out what a cluster file leaves open about hosts, so that all roles read one answer. Pure."""

from __future__ import annotations

from dynamix_ps.apportion import apportion
from dynamix_ps.config.role_hosts import hosts_of, role_hosts
from dynamix_ps.config.schema import Config, ServerSection


def resolved(config: Config) -> Config:
    """The same job with an entry for every worker, and if it names hosts, the host and first size of every role.

    `config` must break no rule.
    """
    config = with_places(config)
    cluster = config.cluster
    if not cluster.hosts:
        return config
    placed, sizes = role_hosts(cluster), first_sizes(config)
    workers = tuple(
        worker.model_copy(update={"host": host, "batch": size})
        for worker, host, size in zip(cluster.workers, placed.workers, sizes, strict=True)
    )
    servers = tuple(ServerSection.model_validate({"host": host}) for host in placed.servers)
    changes = {"host": placed.home, "servers": servers, "workers": workers}
    return config.model_copy(update={"cluster": cluster.model_copy(update=changes)})


def with_places(config: Config) -> Config:
    """The same job with entries for all workers that may come later, `elastic.max_workers` in all."""
    workers = config.cluster.workers
    free = (config.elastic.max_workers or 0) - len(workers)
    if free <= 0:
        return config
    place = workers[-1].model_copy(update={"host": None, "later": True})
    return config.model_copy(
        update={"cluster": config.cluster.model_copy(update={"workers": (*workers, *(place,) * free)})}
    )


def first_sizes(config: Config) -> tuple[int, ...]:
    """`batch` of every worker: its own, or its share of those that are not set, by the speed of its host."""
    cluster = config.cluster
    hosts, placed = hosts_of(cluster), role_hosts(cluster).workers
    free = [rank for rank, one in enumerate(cluster.workers) if not (one.later or "batch" in one.model_fields_set)]
    sizes = [worker.batch for worker in cluster.workers]
    speeds = [hosts[name].speed for rank in free if (name := placed[rank]) is not None]
    if len(set(speeds)) > 1:
        bounds = [config.bounds(rank) for rank in free]
        total = sum(sizes[rank] for rank in free)
        parts = apportion(total, speeds, [max(1, low) for low, _ in bounds], [high for _, high in bounds])
        for rank, part in zip(free, parts, strict=True):
            sizes[rank] = part
    return tuple(sizes)
