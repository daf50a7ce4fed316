"""A process that another launcher has started becomes a worker."""

from __future__ import annotations

import os

import pytest

from dynamix_ps.config import variables
from dynamix_ps.errors import EnvironmentNotReady, UsageError
from dynamix_ps.other_launchers import adopt
from dynamix_ps.other_launchers.meeting import JobProcess
from worker_hooks.process.adopted import Chosen, begin_job


def process(machine: str, address: str) -> JobProcess:
    return JobProcess(1, machine, address, "agent", "1")


def test_a_job_on_one_machine_stays_on_the_loopback():
    here = [process("a", "10.0.0.1"), process("a", "10.0.0.1")]
    assert adopt._reached(here[0], here) == "127.0.0.1"


def test_other_machines_reach_the_address_on_the_route_to_them(monkeypatch: pytest.MonkeyPatch):
    """MASTER_ADDR may be a name that means the loopback where rank 0 runs."""
    monkeypatch.setattr(adopt, "_address_towards", {"10.0.0.2": "10.0.0.1"}.__getitem__)
    job = [process("a", "127.0.1.1"), process("b", "10.0.0.2")]
    assert [adopt._reached(one, job) for one in job] == ["10.0.0.1", "10.0.0.2"]


def test_equal_addresses_on_several_machines_are_not_the_loopback():
    job = [process("a", "172.17.0.2"), process("b", "172.17.0.2")]
    assert adopt._reached(job[0], job) == "172.17.0.2"


def test_all_processes_run_one_version():
    adopt._check_versions(["1", "1"])
    with pytest.raises(EnvironmentNotReady, match="1 on rank 0, None on rank 1; install one on all"):
        adopt._check_versions(["1", None, "1"])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"policy": 3}, "policy=3"),
        ({"batch": 8}, "batch=8"),
        ({"batch": (8, 16, 32)}, "smallest and the largest"),
        ({"batch": "88"}, "smallest and the largest"),
    ],
)
def test_choices_of_another_kind_are_refused(given, named):
    with pytest.raises(UsageError, match=named):
        Chosen.of(**{"policy": None, "batch": None, **given})


def test_a_cluster_file_of_our_launcher_decides_alone(monkeypatch: pytest.MonkeyPatch):
    for name in [one for one in os.environ if one.startswith(("DMLC_", "DYNAMIX_"))]:
        monkeypatch.delenv(name)
    begin_job(64, Chosen("ppo"))  # in one process it has no effect
    monkeypatch.setenv("DMLC_ROLE", "worker")
    monkeypatch.setenv(variables.CONFIG, "c.yaml")
    monkeypatch.setenv(variables.RUN_ID, "abc")
    begin_job(64, Chosen())
    with pytest.raises(UsageError, match=r"attach\(policy='ppo'\): the cluster file c.yaml says so"):
        begin_job(64, Chosen("ppo"))
