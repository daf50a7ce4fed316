"""The pods of a Kubernetes job as hosts, and what reaches one of them."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from dynamix_ps import own_process
from dynamix_ps.config.schema import Host
from dynamix_ps.errors import EnvironmentNotReady, UsageError
from dynamix_ps.launch.targets.choice import allocation
from dynamix_ps.launch.targets.command_link import ON_OWN_MACHINE
from dynamix_ps.launch.targets.kubernetes.allocation import (
    KubernetesJob,
    Pod,
    advice,
    kubernetes_job,
    read,
    wait_for_agents,
    written,
)

PODS = (Pod("fast", "train-launcher-0-0.train", 2), Pod("slow", "train-agents-1-0-0.train", 1))
TEXT = "fast=train-launcher-0-0.train:2,slow=train-agents-1-0-0.train:1"


def job(hostname: str = "train-launcher-0-0") -> KubernetesJob:
    return KubernetesJob(PODS, Path("/etc/dynamix"), hostname)


def test_pods_are_written_and_read() -> None:
    assert written(PODS) == TEXT
    assert read(TEXT) == PODS


@pytest.mark.parametrize("wrong", ["", "fast", "fast=:2", "fast=a", "fast=a:2,", "fast=a:2,fast=b:1", "=a:1", "a=b:-1"])
def test_what_is_no_list_of_pods_is_refused(wrong: str) -> None:
    with pytest.raises(EnvironmentNotReady, match=r"^DYNAMIX_PODS: "):
        read(wrong)


def test_a_job_is_found_unasked() -> None:
    assert kubernetes_job({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}) is None
    found = allocation({"DYNAMIX_PODS": TEXT, "DYNAMIX_PODS_SECRET": "/etc/dynamix"})
    assert found is not None
    assert found.name == "the Kubernetes job of 2 pods"
    assert (found.reaches("slow"), found.reaches("other")) == (True, False)


def test_a_job_without_its_secret_is_refused() -> None:
    with pytest.raises(EnvironmentNotReady, match=r"^DYNAMIX_PODS is set and DYNAMIX_PODS_SECRET is not"):
        kubernetes_job({"DYNAMIX_PODS": TEXT})


def test_pods_are_hosts() -> None:
    assert job().hosts(3) == {
        "fast": Host(address="train-launcher-0-0.train", slots=2),
        "slow": Host(address="train-agents-1-0-0.train", slots=1),
    }
    with pytest.raises(
        UsageError, match=r"^the Kubernetes job of 2 pods has 3 slots for 4 workers; write its manifests"
    ):
        job().hosts(4)


def test_another_pod_is_reached_by_tcp_and_the_own_one_without() -> None:
    assert job().agent_command("fast") is ON_OWN_MACHINE
    command = job().agent_command("slow")
    where = ("train-agents-1-0-0.train", "7077", "/etc/dynamix")
    assert command.argv == own_process.command("dynamix_ps.launch.targets.kubernetes.tls_command", *where)
    assert command.name == "the connection to train-agents-1-0-0.train"
    assert not command.shares_run_folder
    assert command.shell == ()


def test_what_to_do_about_a_connection_that_ends() -> None:
    lines = ["error: a.b port 7077: what listens there has no certificate of this job (self-signed)"]
    assert advice("a.b", 3, lines, False).startswith("delete the job and apply the output of one `dynamix k8s`")
    lines = ["error: a.b port 7077: the other end has closed the connection"]
    assert advice("a.b", 3, lines, True).endswith("see: kubectl describe pod a")


def test_the_launcher_waits_until_all_agents_listen(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as late:
        late.bind(("127.0.0.1", 0))
        port = late.getsockname()[1]
        waiting = threading.Thread(target=wait_for_agents, args=([Pod("late", "127.0.0.1", 1)], port))
        waiting.start()
        seen = ""
        while "waits for 127.0.0.1: Connection refused" not in seen:
            seen += capsys.readouterr().out
        late.listen()
        waiting.join()
