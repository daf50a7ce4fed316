"""Which pods a job gets, and what each of them asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.config.load import dump_config, load_config
from dynamix_ps.config.resolve import resolved
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import ConfigError, UsageError
from dynamix_ps.launch.roles.plan import job_roles
from dynamix_ps.launch.targets.kubernetes.pods import Needs, PodGroup, pod_groups, times, with_addresses, with_hosts


def job(workers: int = 3, hosts: dict[str, Any] | None = None, servers: Any = None, **keys: Any) -> Config:
    cluster = {"workers": ({},) * workers, **({"hosts": hosts} if hosts else {})}
    if servers is not None:
        cluster["servers"] = servers
    return with_hosts(Config.model_validate({"cluster": cluster, **keys}))


def names(groups: tuple[PodGroup, ...]) -> dict[str, list[str]]:
    return {group.name: [pod.address for pod in group.pods] for group in groups}


def needs(groups: tuple[PodGroup, ...]) -> dict[str, Needs]:
    return {pod.host: group.needs for group in groups for pod in group.pods}


UNEVEN = {"slow": {"slots": 1}, "fast": {"slots": 2, "devices": (0, 1)}, "same": {"slots": 1}}


def test_without_hosts_each_worker_has_a_pod() -> None:
    groups = pod_groups(job(), "train")
    assert names(groups) == {
        "launcher": ["train-launcher-0-0.train"],
        "agents-1": ["train-agents-1-0-0.train", "train-agents-1-0-1.train"],
    }
    assert [pod.host for group in groups for pod in group.pods] == ["pod-0", "pod-1", "pod-2"]


def test_pods_that_need_the_same_are_one_group_and_the_launcher_is_where_the_scheduler_is() -> None:
    groups = pod_groups(job(4, UNEVEN), "t")
    assert {group.name: [pod.host for pod in group.pods] for group in groups} == {
        "launcher": ["slow"],
        "agents-1": ["fast"],
        "agents-2": ["same"],
    }
    elsewhere = Config.model_validate({"cluster": {"hosts": UNEVEN, "host": "fast", "workers": ({},) * 4}})
    groups = pod_groups(with_hosts(elsewhere), "t")
    assert {group.name: [pod.host for pod in group.pods] for group in groups} == {
        "launcher": ["fast"],
        "agents-1": ["slow", "same"],
    }


def test_a_pod_asks_for_what_its_roles_need() -> None:
    found = needs(pod_groups(job(4, UNEVEN, env={"OMP_NUM_THREADS": "4"}), "t", "4Gi"))
    assert found["slow"] == Needs(cpus=5, gpus=0, memory="4Gi")
    assert found["fast"] == Needs(cpus=9, gpus=2, memory="8Gi")
    assert needs(pod_groups(job(4, UNEVEN, comm="gloo"), "t"))["fast"] == Needs(cpus=2, gpus=2)


def test_labels_of_nodes_are_those_of_a_host_and_part_its_group() -> None:
    groups = pod_groups(job(), "t", labels={"pod-2": {"gpu": "a100"}})
    assert [group.needs.labels for group in groups] == [(), (), (("gpu", "a100"),)]
    with pytest.raises(UsageError, match=r"^--node: 'fast' is no host of the job, which has pod-0, pod-1, pod-2$"):
        pod_groups(job(), "t", labels={"fast": {"gpu": "a100"}})


def test_servers_on_hosts_of_their_own_get_pods() -> None:
    def slots(comm: str) -> dict[str, int]:
        groups = pod_groups(job(2, servers=2, comm=comm), "t")
        return {pod.host: pod.slots for group in groups for pod in group.pods}

    assert slots("byteps") == {"pod-0": 1, "pod-1": 1, "servers-0": 0, "servers-1": 0}
    assert slots("gloo") == {"pod-0": 1, "pod-1": 1}


def test_hosts_without_a_role_get_none() -> None:
    assert list(needs(pod_groups(job(1, UNEVEN), "t"))) == ["slow"]


@pytest.mark.parametrize("comm", ["byteps", "gloo"])
@pytest.mark.parametrize("servers", [None, 2])
@pytest.mark.parametrize("hosts", [None, {**UNEVEN, "store": {"slots": 0}}])
def test_the_cluster_file_of_the_launcher_has_every_role_where_it_was(
    hosts: dict[str, Any] | None, servers: int | None, comm: str, tmp_path: Path
) -> None:
    config = job(4, hosts, servers, comm=comm, name="mine", policy={"name": "static"})
    groups = pod_groups(config, "train")
    (tmp_path / "c.yaml").write_text(dump_config(with_addresses(resolved(config), groups, "/runs")))
    there = load_config(tmp_path / "c.yaml")
    assert job_roles(there) == job_roles(resolved(config))
    assert there.run_dir == "/runs"
    addresses = {pod.host: pod.address for group in groups for pod in group.pods}
    assert {name: host.address for name, host in there.cluster.hosts.items()} == addresses


def test_devices_are_counted_from_0_in_a_pod() -> None:
    config = job(3, {"slow": {}, "fast": {"devices": (2, 5)}})
    groups = pod_groups(config, "train")
    assert needs(groups)["fast"].gpus == 2
    there = with_addresses(resolved(config), groups, "/runs")
    assert {name: host.devices for name, host in there.cluster.hosts.items()} == {"slow": None, "fast": (0, 1)}


def test_a_single_pod_is_a_machine_alone(tmp_path: Path) -> None:
    config = job(2, {"only": {"slots": 2}})
    groups = pod_groups(config, "train")
    assert [len(group.pods) for group in groups] == [1]
    (tmp_path / "c.yaml").write_text(dump_config(with_addresses(resolved(config), groups, "/runs")))
    assert load_config(tmp_path / "c.yaml").cluster.hosts["only"].address == "127.0.0.1"


def test_an_address_to_listen_on_means_nothing_among_pods() -> None:
    config = with_hosts(Config.model_validate({"cluster": {"host": "0.0.0.0", "workers": ({}, {})}}))
    assert names(pod_groups(config, "t"))["launcher"] == ["t-launcher-0-0.t"]


def test_roles_that_need_a_host_of_the_file_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.workers\[0\]\.host"):
        with_hosts(Config.model_validate({"cluster": {"workers": ({"host": "fast"}, {})}}))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("My_Job", "the job cannot be called 'My_Job' in Kubernetes, which wants small letters, digits and -"),
        ("9lives", "the job cannot be called '9lives'"),
        ("a" * 60, "the name '" + "a" * 60 + "' is 16 characters too long for a pod of the job; set --name"),
    ],
)
def test_names_that_kubernetes_does_not_take_are_refused(name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"^{reason}"):
        pod_groups(job(1), name)


@pytest.mark.parametrize(("text", "factor", "product"), [("4Gi", 2, "8Gi"), ("500M", 3, "1500M"), ("1000", 1, "1000")])
def test_memory_is_per_worker(text: str, factor: int, product: str) -> None:
    assert times(text, factor) == product


@pytest.mark.parametrize("wrong", ["4GB", "0Gi", "1.5Gi", "much", "-4Gi", "4 Gi"])
def test_what_is_no_size_of_memory_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="is no size of memory; expected a whole number with a unit"):
        times(wrong, 2)
