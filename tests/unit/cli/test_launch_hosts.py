"""Which hosts `dynamix launch` takes: those of the command line, of the cluster file, or of the job around it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dynamix_ps.cli import launch
from dynamix_ps.cli.main import cli
from dynamix_ps.config.schema import Config
from dynamix_ps.errors import UsageError

JOB = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_NTASKS": "6",
    "SLURM_TASKS_PER_NODE": "2(x3)",
    "PATH": "/nowhere",
}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Config]:
    """The jobs that were launched, in a Slurm job."""
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    configs: list[Config] = []
    monkeypatch.setattr(launch, "run_job", lambda config, *rest, given, waits: configs.append(config) or 0)
    return configs


def run(folder: Path, words: str, hosts: Mapping[str, Any] | None = None, workers: int = 3) -> Any:
    file = folder / "c.yaml"
    file.write_text(f"comm: gloo\ncluster: {{hosts: {dict(hosts or {})}, workers: [{', '.join(['{}'] * workers)}]}}\n")
    return CliRunner().invoke(cli, ["launch", "-c", str(file), *shlex.split(words)], standalone_mode=False)


def slots(config: Config) -> dict[str, int]:
    return {name: host.room for name, host in config.cluster.hosts.items()}


def test_nodes_of_the_job_are_the_hosts_and_that_is_said(launched: list[Config], tmp_path: Path) -> None:
    done = run(tmp_path, "")
    assert slots(launched[0]) == {"n1": 2, "n2": 2, "n3": 2}
    assert done.output == "hosts from Slurm job 42: n1:2,n2:2,n3:2; without a role: n3\n"


@pytest.mark.parametrize(
    ("words", "hosts", "expected"),
    [
        ("-H a:2,b:1", {}, {"a": 2, "b": 1}),
        ("--hostfile hosts", {}, {"a": 3}),
        ("", {"x": {"slots": 3}}, {"x": 3}),
    ],
)
def test_hosts_that_somebody_names_count(
    launched: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, hosts: Any, expected: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("a slots=3\n")
    done = run(tmp_path, words, hosts)
    assert (slots(launched[0]), done.output) == (expected, "")


def test_nodes_can_be_chosen(launched: list[Config], tmp_path: Path) -> None:
    run(tmp_path, "--exclude n2")
    assert slots(launched[0]) == {"n1": 2, "n3": 2}


def test_too_few_tasks_are_refused(launched: list[Config], tmp_path: Path) -> None:
    done = run(tmp_path, "", workers=7)
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith("Slurm job 42 has 6 tasks for 7 workers")
    assert not launched


def test_pods_of_a_kubernetes_job_are_the_hosts(
    launched: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNAMIX_PODS", "a=t-launcher-0-0.t:2,b=t-agents-1-0-0.t:1")
    monkeypatch.setenv("DYNAMIX_PODS_SECRET", "/etc/dynamix")
    done = run(tmp_path, "")
    assert slots(launched[0]) == {"a": 2, "b": 1}
    assert launched[0].cluster.hosts["b"].address == "t-agents-1-0-0.t"
    assert done.output == "hosts from the Kubernetes job of 2 pods: a:2,b:1\n"
