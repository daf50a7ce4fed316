"""Starts a job that was lost as a whole again, from its newest checkpoint, on the hosts that are left."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from dynamix_ps.config.load import check_rules
from dynamix_ps.config.role_hosts import role_hosts
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import ConfigError, UsageError
from dynamix_ps.launch.job.interrupts import Interrupts
from dynamix_ps.launch.job.restarts import wait_before_start_s

_LOOK_S = 0.1  # a signal ends the wait for the next start


def start_over(
    config: Config,
    gone: Collection[str],
    checkpoint: Path | None,
    starts: int,
    interrupts: Interrupts,
    say: Callable[[str], None],
) -> tuple[Config, Path] | None:
    """Wait, then return configuration and checkpoint of the next start. None: no start; `say` got the reason.

    Args:
        config: with all hosts written out.
        gone: the lost hosts.
        checkpoint: the newest one.
        starts: how often the job was started again before.
    """
    if starts >= config.elastic.restarts:
        return None
    try:
        left = without_hosts(config, gone)
        if checkpoint is None:
            raise UsageError("there is no checkpoint; set checkpoint_every")
    except (UsageError, ConfigError) as error:
        say(f"the job is not started again: {error}")
        return None
    wait_s, which = wait_before_start_s(starts), f"{starts + 1} of {config.elastic.restarts} (elastic.restarts)"
    say(f"the job starts again in {wait_s:g} s with {left.first_workers} workers, from {checkpoint}: {which}")
    deadline_s = time.monotonic() + wait_s
    while not interrupts.count:
        if time.monotonic() >= deadline_s:
            return left, checkpoint
        time.sleep(_LOOK_S)
    say(f"{interrupts.first}: the job is not started again")
    return None


def without_hosts(config: Config, gone: Collection[str]) -> Config:
    """The same job on the hosts that are left, with the workers and servers of these hosts.

    Args:
        config: with all hosts written out.
        gone: the lost hosts.

    Raises:
        UsageError, ConfigError: the job cannot run there; the text says why.
    """
    if not gone:
        return config
    cluster, placed = config.cluster, role_hosts(config.cluster)
    if placed.home in gone:
        had = "scheduler" if config.data_plane.has_servers else "arbitrator"
        raise UsageError(f"host {placed.home} is gone, which had the {had}; name another one as cluster.host")
    workers = tuple(one for one, host in zip(cluster.workers, placed.workers, strict=True) if host not in gone)
    servers = tuple(one for one, host in zip(cluster.servers or (), placed.servers, strict=True) if host not in gone)
    least, there = config.elastic.min_workers or 1, sum(not worker.later for worker in workers)
    if there < least:
        raise UsageError(f"{there} workers are on the hosts that are left, elastic.min_workers is {least}")
    if config.data_plane.has_servers and not servers:
        raise UsageError("no server is on the hosts that are left; add one, as by cluster.servers: auto")
    hosts = {name: host for name, host in cluster.hosts.items() if name not in gone}
    left = cluster.model_copy(update={"workers": workers, "servers": servers, "hosts": hosts})
    return check_rules(config.model_copy(update={"cluster": left}), "the job on the hosts that are left")
