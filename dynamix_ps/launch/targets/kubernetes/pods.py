"""The pods of a job in Kubernetes: one per host that has roles, with what its roles need. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dynamix_ps.config.load import check_rules
from dynamix_ps.config.resolve import with_places
from dynamix_ps.config.role_hosts import role_hosts
from dynamix_ps.config.schema import OWN_HOST, Cluster, Config, Host
from dynamix_ps.errors import UsageError
from dynamix_ps.launch.roles.plan import hosts_with_roles, threads_of_worker
from dynamix_ps.launch.targets.kubernetes.allocation import Pod

LAUNCHER = "launcher"  # name of the group with the launcher's pod
_MOST_CHARACTERS = 63  # of a label of DNS
_SUFFIX = 6  # that Kubernetes appends to the name of a pod
_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_QUANTITY = re.compile(r"([1-9][0-9]{0,8})(Ki|Mi|Gi|Ti|k|M|G|T)?")


@dataclass(frozen=True, slots=True)
class Needs:
    """The resources of the container of a pod.

    Attributes:
        cpus: one core per computing thread, and one per server.
        gpus: number of `devices`.
        memory: as Kubernetes writes it; None: no limit.
        labels: labels of the nodes on which the pod may run.
    """

    cpus: int
    gpus: int = 0
    memory: str | None = None
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A group of equal pods; `needs` are the resources of each."""

    name: str
    pods: tuple[Pod, ...]
    needs: Needs


def with_hosts(config: Config) -> Config:
    """The job with its hosts written out: the hosts of the cluster file, else one host per worker.

    Servers on hosts of their own get hosts too where the file names none.

    Raises:
        ConfigError: the job breaks a rule with these hosts.
    """
    config = with_places(config)
    cluster = config.cluster
    if cluster.hosts:
        return config
    own = sum(server.host == OWN_HOST for server in cluster.servers or ())
    hosts = {f"pod-{rank}": Host(slots=1) for rank in range(len(cluster.workers))}
    hosts |= {f"servers-{index}": Host(slots=0) for index in range(own)}
    given = {name: getattr(cluster, name) for name in cluster.model_fields_set if name != "host"}
    spread = Cluster.model_construct(_fields_set={*given, "hosts"}, **{**given, "hosts": hosts})
    return check_rules(config.model_copy(update={"cluster": spread}), "the pods of the job")


def pod_groups(
    config: Config, job: str, memory: str | None = None, labels: Mapping[str, Mapping[str, str]] | None = None
) -> tuple[PodGroup, ...]:
    """The pods of a job whose hosts are written out. The first group is the pod of the launcher and the scheduler.

    Args:
        job: name of the job, and of its headless service.
        memory: of each worker, such as `4Gi`; None: no limit.
        labels: labels of the nodes for a host, by the name of the host.

    Raises:
        UsageError: a name is too long or invalid, a host does not exist, or the memory is no quantity.
    """
    unknown = [host for host in labels or () if host not in config.cluster.hosts]
    if unknown:
        raise UsageError(f"--node: {unknown[0]!r} is no host of the job, which has {', '.join(config.cluster.hosts)}")
    used = hosts_with_roles(config)
    home = role_hosts(config.cluster).home
    needs = {host: _needs(config, host, memory, (labels or {}).get(host, {})) for host in used}
    alike: dict[Needs | None, list[str]] = {None: [host for host in used if host == home]}
    for host in used:
        if host != home:
            alike.setdefault(needs[host], []).append(host)
    return tuple(_groups(config, job, list(alike.values()), needs))


def with_addresses(config: Config, groups: Sequence[PodGroup], run_dir: str) -> Config:
    """The configuration of the launcher: with the addresses of the pods, and run folders on the volume."""
    known = {pod.host: pod.address for group in groups for pod in group.pods}
    if len(known) == 1:
        known = dict.fromkeys(known, "127.0.0.1")
    hosts = {
        name: host.model_copy(update={"address": known[name], "devices": _in_pod(host)})
        for name, host in config.cluster.hosts.items()
        if name in known
    }
    servers = config.cluster.servers if config.data_plane.has_servers else None
    cluster = config.cluster.model_copy(update={"hosts": hosts, "servers": servers})
    return config.model_copy(update={"run_dir": run_dir, "cluster": cluster})


def _in_pod(host: Host) -> tuple[int, ...] | None:
    """The devices of a host as its pod numbers them, from 0."""
    return None if host.devices is None else tuple(range(len(host.devices)))


def _groups(config: Config, job: str, alike: Sequence[Sequence[str]], needs: Mapping[str, Needs]) -> Iterator[PodGroup]:
    for index, hosts in enumerate(alike):
        group = LAUNCHER if index == 0 else f"agents-{index}"
        names = [f"{job}-{group}-0-{number}" for number in range(len(hosts))]
        _check_name(job, names[-1])
        pods = (
            Pod(host, f"{name}.{job}", config.cluster.hosts[host].room) for host, name in zip(hosts, names, strict=True)
        )
        yield PodGroup(group, tuple(pods), needs[hosts[0]])


def _check_name(job: str, longest: str) -> None:
    if not _LABEL.fullmatch(job):
        raise UsageError(
            f"the job cannot be called {job!r} in Kubernetes, which wants small letters, digits and -; set --name"
        )
    too_many = len(longest) + _SUFFIX - _MOST_CHARACTERS
    if too_many > 0:
        raise UsageError(f"the name {job!r} is {too_many} characters too long for a pod of the job; set --name")


def _needs(config: Config, host: str, memory: str | None, labels: Mapping[str, str]) -> Needs:
    placed = role_hosts(config.cluster)
    workers = Counter(placed.workers)[host]
    servers = Counter(placed.servers)[host] if config.data_plane.has_servers else 0
    cpus = workers * threads_of_worker(config) + servers
    gpus = len(config.cluster.hosts[host].devices or ())
    return Needs(max(1, cpus), gpus, memory and times(memory, max(1, workers)), tuple(sorted(labels.items())))


def times(quantity: str, factor: int) -> str:
    """`factor` times a quantity such as `8Gi`. Raises UsageError."""
    found = _QUANTITY.fullmatch(quantity)
    if found is None:
        raise UsageError(
            f"{quantity!r} is no size of memory; expected a whole number with a unit, such as 4Gi or 500Mi"
        )
    return f"{int(found.group(1)) * factor}{found.group(2) or ''}"
