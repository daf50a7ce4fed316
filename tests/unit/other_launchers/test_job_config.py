"""The configuration on which the processes of a job agree."""

from __future__ import annotations

import pytest

from dynamix_ps.config.role_hosts import role_hosts
from dynamix_ps.config.schema import Cluster, Config, Elastic, Host, ServerSection, WorkerSection
from dynamix_ps.errors import ConfigError, EnvironmentNotReady, UsageError
from dynamix_ps.other_launchers.job_config import Wish, agreed, on_hosts
from worker_hooks.process.adopted import Chosen

NOTHING = Chosen()


def wishes(*sizes: int, chosen: Chosen = NOTHING) -> list[Wish]:
    return [Wish(size, chosen) for size in sizes]


def test_sizes_are_those_of_each_worker_and_bounds_follow():
    config = agreed(wishes(32, 16), None, None)
    assert config.initial_sizes() == (32, 16)
    assert [config.bounds(rank) for rank in (0, 1)] == [(4, 128)] * 2
    assert (config.comm, config.mode, config.policy.name) == ("gloo", "adapt", "proportional")
    assert agreed(wishes(1, 1), None, None).bounds(0) == (1, 4)


def test_the_script_may_choose_policy_and_bounds():
    config = agreed(wishes(32, 32, chosen=Chosen("ppo", (8, 512))), None, None)
    assert (config.policy.name, config.bounds(0)) == ("ppo", (8, 512))


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        (Chosen(batch=(64, 8)), r"attach\(batch=\(64, 8\)\): batch.min: must not exceed batch.max = 8"),
        (Chosen(batch=(0, 8)), "a worker begins with 32 samples per batch, expected 0 to 8"),
        (Chosen(batch=(8, -1)), "batch.max|max: "),
        (Chosen(policy="nobody"), r"attach\(policy='nobody'\): policy.name: "),
    ],
)
def test_a_wrong_choice_is_named(chosen: Chosen, named: str):
    with pytest.raises(ConfigError, match=named):
        agreed(wishes(32, chosen=chosen), None, None)


def test_all_workers_must_choose_the_same():
    told = [Wish(32, Chosen("ppo")), Wish(32, NOTHING)]
    with pytest.raises(UsageError, match="policy='ppo' on rank 0, nothing of this on rank 1"):
        agreed(told, None, None)


def test_a_cluster_file_is_taken_whole_or_not_at_all():
    config = Config(cluster=Cluster(workers=(WorkerSection(batch=64), WorkerSection())), comm="gloo")
    assert agreed(wishes(1, 1), "c.yaml", config) is config
    with pytest.raises(UsageError, match=r"attach\(policy='ppo'\): the cluster file c.yaml says so"):
        agreed(wishes(1, 1, chosen=Chosen("ppo")), "c.yaml", config)


@pytest.mark.parametrize(
    ("changes", "cluster", "named"),
    [
        ({}, {"workers": (WorkerSection(),)}, "names 1 workers, and this job has 2"),
        ({}, {"servers": (ServerSection(host="worker-0"),)}, "cluster.servers: every machine with workers has one"),
        ({"env": {"A": "1"}}, {}, "env: the processes run already"),
        ({"elastic": Elastic(min_workers=1)}, {}, "elastic.min_workers"),
        ({}, {"workers": (WorkerSection(speed=0.5), WorkerSection())}, "emulated speeds"),
        ({}, {"hosts": {"a": Host()}}, "cluster.hosts"),
        ({}, {"port": 4000}, "cluster.host, port, arbitrator_port"),
        ({"sync": "rsync"}, {}, "sync: the processes run already"),
    ],
)
def test_a_cluster_file_that_needs_our_launcher_is_refused(changes, cluster, named):
    workers = (WorkerSection(), WorkerSection())
    config = Config(**{"comm": "gloo", "cluster": Cluster(**{"workers": workers, **cluster}), **changes})
    with pytest.raises(ConfigError, match=f"c.yaml: .*{named}"):
        agreed(wishes(1, 1), "c.yaml", config)


def test_byteps_must_be_on_all_machines():
    config = Config(cluster=Cluster(workers=(WorkerSection(),) * 3), comm="byteps")
    lacking = [Wish(1, NOTHING), *[Wish(1, NOTHING, no_byteps=f"not installed on {host}") for host in "bc"]]
    with pytest.raises(EnvironmentNotReady) as raised:
        agreed(lacking, "c.yaml", config)
    for said in ("rank 1: not installed on b", "rank 2: not installed on c", "dynamix build-byteps", "comm: gloo"):
        assert said in str(raised.value)
    ring = config.model_copy(update={"comm": "gloo"})
    assert agreed(lacking, "c.yaml", ring) is ring


def test_every_machine_has_a_server():
    """Ranks may be in any order on the machines."""
    config = Config(cluster=Cluster(workers=(WorkerSection(),) * 4), comm="byteps")
    found = on_hosts(config, [[0, 1, 3], [2]], ["10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.1"])
    placed = role_hosts(found.cluster)
    assert placed.workers == ("host-0", "host-0", "host-1", "host-0")
    assert (placed.servers, placed.home) == (("host-0", "host-1"), "host-0")
    assert [host.address for host in found.cluster.hosts.values()] == ["10.0.0.1", "10.0.0.2"]
    assert on_hosts(config, [[0, 1, 2, 3]], ["127.0.0.1"] * 4) is config
