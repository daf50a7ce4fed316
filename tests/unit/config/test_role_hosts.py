"""Which role runs on which host, what is refused about hosts, and first sizes by their speed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamix_ps.config.load import check_rules, dump_config, load_config
from dynamix_ps.config.resolve import resolved
from dynamix_ps.config.role_hosts import RoleHosts, address_of, role_hosts
from dynamix_ps.config.schema import Cluster, Config, Host, WorkerSection
from dynamix_ps.errors import ConfigError


def load(folder: Path, text: str) -> Config:
    file = folder / "c.yaml"
    file.write_text(text)
    return load_config(file)


def placed(folder: Path, cluster: str, comm: str = "byteps") -> RoleHosts:
    return role_hosts(load(folder, f"comm: {comm}\ncluster: {{{cluster}}}\n").cluster)


def test_without_hosts_all_roles_are_on_the_one_host() -> None:
    cluster = Cluster(workers=(WorkerSection(), WorkerSection()), host="10.0.0.7")
    assert role_hosts(cluster) == RoleHosts(("localhost", "localhost"), ("localhost",), "localhost")
    assert address_of(cluster, "localhost") == "10.0.0.7"


@pytest.mark.parametrize(
    ("cluster", "workers", "servers", "home"),
    [
        ("hosts: {a: {slots: 2}, b: {}}, workers: [{}, {}, {}]", "a a b", "a b", "a"),
        ("hosts: {a: {slots: 2}, b: {}}, workers: [{}, {}]", "a a", "a", "a"),
        ("hosts: {a: {devices: [3, 5]}, b: {}}, workers: [{}, {}, {}]", "a a b", "a b", "a"),
        ("hosts: {a: {slots: 2}, b: {}}, workers: [{host: b}, {}, {host: a}]", "b a a", "a b", "b"),
        ("hosts: {s: {slots: 0}, a: {}, b: {}}, servers: 3, workers: [{}, {}]", "a b", "s s s", "a"),
        ("hosts: {s: {slots: 0}, a: {}, b: {}}, host: s, workers: [{}, {}]", "a b", "a b", "s"),
        ("hosts: {s: {slots: 0}, a: {}, t: {slots: 0}}, servers: 3, workers: [{}]", "a", "s t s", "a"),
        (
            "hosts: {a: {}, b: {}, c: {slots: 0}}, servers: [{host: worker-1}, {host: a}, {}], workers: [{}, {}]",
            "a b",
            "b a c",
            "a",
        ),
    ],
)
def test_roles_fill_the_slots_in_the_order_of_the_file(
    tmp_path: Path, cluster: str, workers: str, servers: str, home: str
) -> None:
    assert placed(tmp_path, cluster) == RoleHosts(tuple(workers.split()), tuple(servers.split()), home)


MANY = "hosts:\n    a: {address: 10.0.0.1, slots: 1}\n    b: {}\n"  # begins in line 2


@pytest.mark.parametrize(
    ("cluster", "line", "message"),
    [
        (
            MANY + "  workers: [{}, {}, {}]",
            2,
            "cluster.hosts: have 2 slots for 3 workers: no room for worker 2; set slots",
        ),
        (MANY + "  workers: [{}, {}, {}]", 2, "or add a host (got a: 1, b: 1)"),
        (
            MANY + "  workers:\n    - {}\n    - {host: c}",
            7,
            "cluster.workers[1].host: is no host of cluster.hosts, which has a, b",
        ),
        (
            MANY + "  workers:\n    - {host: a}\n    - {host: a}",
            7,
            "workers[1].host: has 1 slot, and 2 workers name it; set cluster.hosts.a.slots",
        ),
        (
            MANY + "  workers: [{}, {}]\n  servers: 2",
            6,
            "cluster.servers[0].host: needs a host that runs no worker; add one",
        ),
        (
            MANY + "  workers: [{}, {}]\n  servers: [{host: x}]",
            6,
            "cluster.servers[0].host: is no host of cluster.hosts",
        ),
        (
            MANY + "  workers: [{}, {}]\n  host: 10.0.0.1",
            6,
            "cluster.host: is no host of cluster.hosts, which has a, b",
        ),
        (
            "hosts:\n    a: {}\n    b: {address: 127.0.0.1}\n  workers: [{}]",
            4,
            "cluster.hosts.b.address: means another machine on every one",
        ),
        ("hosts:\n    a: {}\n    b: {address: '::1'}\n  workers: [{}]", 4, "such as 10.0.0.1 (got ::1)"),
        ("hosts:\n    localhost: {}\n    b: {}\n  workers: [{}]", 3, "cluster.hosts.localhost: means another machine"),
        (
            "hosts:\n    a: {address: h}\n    b: {address: h}\n  workers: [{}]",
            4,
            "b.address: is also the address of a; write one host",
        ),
        ("hosts:\n    -oProxyCommand=x: {}\n  workers: [{}]", 3, "is no name or address of a host"),
        ("hosts:\n    a: {address: -oX}\n  workers: [{}]", 3, "cluster.hosts.a.address: must match"),
        ("hosts:\n    worker-0: {}\n  workers: [{}]", 3, "has another meaning in cluster.servers"),
        ("hosts:\n    a: {slot: 2}\n  workers: [{}]", 3, "cluster.hosts.a.slot: unknown key; did you mean 'slots'?"),
        ("hosts: [a, b]\n  workers: [{}]", 2, "cluster.hosts: must be a mapping of keys to values (got a list)"),
        ("hosts:\n    a: {slots: -1}\n  workers: [{}]", 3, "cluster.hosts.a.slots: must be at least 0 (got -1)"),
        ("workers: [{host: a}]", 2, "cluster.workers[0].host: names a host, and cluster.hosts names none; add it"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_line(tmp_path: Path, cluster: str, line: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"cluster:\n  {cluster}\n")
    errors = str(caught.value).splitlines()
    assert all(error.startswith(f"{tmp_path / 'c.yaml'}:{line}: ") for error in errors), errors
    assert any(message in error for error in errors), errors


def test_a_ring_has_its_home_where_worker_0_is(tmp_path: Path) -> None:
    hosts = "hosts: {a: {}, b: {}}, workers: [{host: b}, {}]"
    assert placed(tmp_path, hosts, "gloo").home == "b"
    with pytest.raises(ConfigError, match=r"c\.yaml:2: cluster.host: must be the host of worker 0 with comm: gloo"):
        placed(tmp_path, hosts + ", host: a", "gloo")


def test_one_host_may_be_loopback(tmp_path: Path) -> None:
    assert placed(tmp_path, "hosts: {localhost: {slots: 2}}, workers: [{}, {}]").workers == ("localhost",) * 2


def test_what_is_resolved_names_every_host_and_stays_as_it_is(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "cluster: {hosts: {a: {slots: 2}, b: {speed: 4}, c: {}}, workers: [{}, {batch: 100}, {}, {host: c}]}\n",
    )
    whole = resolved(config)
    assert [worker.host for worker in whole.cluster.workers] == ["a", "a", "b", "c"]
    assert [server.host for server in whole.cluster.servers or ()] == ["a", "b", "c"]
    assert whole.cluster.host == "a"
    assert whole.initial_sizes() == (32, 100, 128, 32)
    assert resolved(load(tmp_path, dump_config(whole))) == load(tmp_path, dump_config(whole))
    assert load(tmp_path, dump_config(whole)).initial_sizes() == whole.initial_sizes()
    alone = Config(cluster=Cluster(workers=(WorkerSection(),)))
    assert resolved(alone) is alone


def test_first_sizes_by_speed_stay_within_bounds(tmp_path: Path) -> None:
    workers = "hosts: {a: {speed: 9}, b: {}}, workers: [{max: 80}, {}]"
    assert resolved(load(tmp_path, f"cluster: {{{workers}}}\n")).initial_sizes() == (80, 48)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.data())
def test_ranks_follow_the_file_and_no_host_is_overfull(slots: list[int], data: st.DataObject) -> None:
    names = [f"h{index}" for index in range(len(slots))]
    wishes = data.draw(st.lists(st.sampled_from([None, *names]), min_size=1, max_size=12))
    hosts = {name: Host(slots=count) for name, count in zip(names, slots, strict=True)}
    found = role_hosts(Cluster(hosts=hosts, workers=tuple(WorkerSection(host=wish) for wish in wishes))).workers
    for name, count in zip(names, slots, strict=True):
        assert found.count(name) <= count
    for wish, host in zip(wishes, found, strict=True):
        assert wish is None or host in (wish, None)
    assert None not in found or sum(slots) < len(wishes) or any(wish is not None for wish in wishes)
    free = [names.index(host) for wish, host in zip(wishes, found, strict=True) if wish is None and host is not None]
    assert free == sorted(free)


def test_the_command_line_is_checked_like_the_file() -> None:
    config = Config(cluster=Cluster(hosts={"a": Host()}, workers=(WorkerSection(), WorkerSection())))
    with pytest.raises(ConfigError, match=r"^-H a: cluster.hosts: have 1 slot for 2 workers.* \(got a: 1\)$"):
        check_rules(config, "-H a")
