"""The configuration on which the processes of a job agree: of a cluster file, or of what the script says. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dynamix_ps.config.load import check_rules
from dynamix_ps.config.resolve import resolved
from dynamix_ps.config.schema import Cluster, Config, Host
from dynamix_ps.config.without_file import config_without_file
from dynamix_ps.errors import ConfigError, EnvironmentNotReady, UsageError
from dynamix_ps.other_launchers.job import host_name
from dynamix_ps.other_launchers.place import LOOPBACK
from worker_hooks.process.adopted import Chosen


@dataclass(frozen=True, slots=True)
class Wish:
    """What one worker says.

    Attributes:
        first_size: where no cluster file says otherwise.
        chosen: what its script gives to `attach`.
        address: of its machine, as the others reach it.
        no_byteps: why it cannot sum over BytePS; empty: it can, or nobody asks.
    """

    first_size: int
    chosen: Chosen
    address: str = LOOPBACK
    no_byteps: str = ""


def agreed(wishes: Sequence[Wish], file: str | None, config: Config | None) -> Config:
    """The configuration of the job.

    Args:
        wishes: of all workers, in the order of ranks.
        file: cluster file that DYNAMIX_CONFIG names for rank 0.
        config: what it says; None: there is none.

    Raises:
        UsageError: the workers ask different things, or what the cluster file says already.
        ConfigError: the configuration does not fit this job.
        EnvironmentNotReady: a machine has no BytePS, and the configuration needs it.
    """
    chosen = wishes[0].chosen
    for rank, wish in enumerate(wishes):
        if wish.chosen != chosen:
            raise UsageError(
                f"attach() differs between workers: {str(chosen) or 'nothing of this'} on rank 0, "
                f"{str(wish.chosen) or 'nothing of this'} on rank {rank}; give the same policy and batch on all"
            )
    if config is None:
        sizes = [wish.first_size for wish in wishes]
        return config_without_file(sizes, f"attach({chosen})", comm="gloo", bounds=chosen.batch, policy=chosen.policy)
    if str(chosen):
        raise UsageError(f"attach({chosen}): the cluster file {file} says so for this job; remove it here, or there")
    if broken := "\n".join(f"{file}: {text}" for text in _unfit(config, len(wishes))):
        raise ConfigError(broken)
    lacking = [f"rank {rank}: {wish.no_byteps}" for rank, wish in enumerate(wishes) if wish.no_byteps]
    if config.data_plane.has_servers and lacking:
        found = "; ".join(lacking)
        raise EnvironmentNotReady(
            f"{file}: comm: {config.comm}: {found}; run: dynamix build-byteps. Or write comm: gloo"
        )
    return config


def _unfit(config: Config, workers: int) -> Iterator[str]:
    """Why a cluster file does not fit a job that another launcher has started."""
    instead = "start the job with `dynamix launch`"
    if len(config.cluster.workers) != workers:
        yield f"cluster.workers: names {len(config.cluster.workers)} workers, and this job has {workers} processes"
    if config.cluster.servers is not None:
        yield f"cluster.servers: every machine with workers has one; remove it, or {instead}"
    if (
        config.cluster.host != Cluster.model_fields["host"].default
        or config.cluster.port
        or config.cluster.arbitrator_port
    ):
        yield f"cluster.host, port, arbitrator_port: they follow from where rank 0 runs; remove them, or {instead}"
    if config.sync != "none":
        yield f"sync: the processes run already; copy the code before you start them, or {instead}"
    if config.cluster.hosts:
        yield f"cluster.hosts: the launcher has placed the workers already; remove it, or {instead}"
    if any(worker.speed < 1 for worker in config.cluster.workers):
        yield f"cluster.workers: emulated speeds need control of the processes; remove speed, or {instead}"
    if config.is_elastic:
        yield f"elastic.min_workers: nobody would start lost workers again; remove it, or {instead}"
    if config.env:
        yield f"env: the processes run already; set these variables where you start them, or {instead}"


def on_hosts(config: Config, machines: Sequence[Sequence[int]], addresses: Sequence[str]) -> Config:
    """The same with the machine of every role, where there are servers and several machines.

    Args:
        machines: ranks on each machine.
        addresses: of the machine of each worker, in the order of ranks.
    """
    if not config.data_plane.has_servers or len(machines) == 1:
        return config
    hosts, workers = {}, list(config.cluster.workers)
    for index, ranks in enumerate(machines):
        name = host_name(index, len(machines))
        hosts[name] = Host(address=addresses[ranks[0]], slots=len(ranks))
        for rank in ranks:
            workers[rank] = workers[rank].model_copy(update={"host": name})
    cluster = config.cluster.model_copy(update={"hosts": hosts, "workers": tuple(workers)})
    return resolved(check_rules(config.model_copy(update={"cluster": cluster}), "several hosts"))


def with_unencrypted_calls(config: Config) -> Config:
    """The same for a job on several hosts without certificates."""
    changed = config.model_copy(update={"cluster": config.cluster.model_copy(update={"insecure": True})})
    return check_rules(changed, "several hosts")
