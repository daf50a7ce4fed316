"""`dynamix k8s`: what it writes can be read, and a launcher in a pod can do with it what it must."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from dynamix_ps.cli.main import cli
from dynamix_ps.config.load import load_config
from dynamix_ps.errors import ConfigError, DynamixError, UsageError
from dynamix_ps.launch.targets.kubernetes.allocation import KubernetesJob, read
from dynamix_ps.launch.targets.kubernetes.job_secret import JobSecret

CLUSTER = "name: mine\ncomm: gloo\nenv: {PASSWORD: hidden}\ncluster: {workers: [{batch: 96}, {batch: 32}]}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with a cluster file."""
    (tmp_path / "c.yaml").write_text(CLUSTER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def k8s(words: str) -> Result:
    return CliRunner().invoke(cli, ["k8s", *shlex.split(words)], standalone_mode=False)


def written(words: str) -> dict[str, dict[str, Any]]:
    """The manifests on the output by kind."""
    done = k8s(words)
    assert done.exception is None, done.output
    return {each["kind"]: each for each in yaml.safe_load_all(done.output)}


def test_the_manifests_run_the_job_of_the_cluster_file(folder: Path) -> None:
    found = written("-c c.yaml --image i:1 -- python 'a b.py' --epochs 3")
    assert list(found) == ["Secret", "Service", "NetworkPolicy", "JobSet"]
    for name, text in found["Secret"]["stringData"].items():
        (folder / name).write_text(text)
    config = load_config(folder / "cluster.yaml")
    assert config.command == ("python", "a b.py", "--epochs", "3")
    assert [worker.batch for worker in config.cluster.workers] == [96, 32]
    assert config.run_dir == "/runs"
    JobSecret.load(folder)
    launcher = found["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    pods = next(each["value"] for each in launcher["env"] if each["name"] == "DYNAMIX_PODS")
    hosts = KubernetesJob(read(pods), folder, "").hosts(2)
    assert {name: host.address for name, host in config.cluster.hosts.items()} == {
        name: host.address for name, host in hosts.items()
    }


def test_each_job_has_keys_of_its_own_and_they_are_in_its_secret_alone(folder: Path) -> None:
    one, other = (k8s("-c c.yaml --image i -- python a.py").output for _ in range(2))
    secrets = [next(yaml.safe_load_all(output))["stringData"] for output in (one, other)]
    assert secrets[0]["token"] != secrets[1]["token"]
    assert secrets[0]["ca.crt"] != secrets[1]["ca.crt"]
    behind = one.split("\n---\n", 1)[1]
    assert not any(text in behind for text in (secrets[0]["token"], "PRIVATE KEY", "hidden"))


def test_files_in_a_folder_that_nobody_else_reads(folder: Path) -> None:
    done = k8s("-c c.yaml --image i --kind trainjob --probe -o out -- python a.py")
    names = ["1-secret", "2-service", "3-network-policy", "4-training-runtime", "5-trainjob"]
    files = sorted((folder / "out").iterdir())
    assert [path.stem for path in files] == names
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    assert (folder / "out").stat().st_mode & 0o777 == 0o700
    assert done.output.splitlines()[-1] == "next:    kubectl apply -f out"
    again = k8s("-c c.yaml --image i -o out -- python a.py")
    assert isinstance(again.exception, UsageError)


def test_options_reach_the_manifests(folder: Path) -> None:
    words = "--name other --policy static --mode observe --insecure --restarts 2 --memory 1Gi --shm 3Gi"
    words += " --node pod-1:gpu=a100 --node pod-1:zone=a --run-dir /out --resume /out/a.pt"
    found = written(f"-c c.yaml --image i {words} -- python a.py")
    (file := folder / "c2.yaml").write_text(found["Secret"]["stringData"]["cluster.yaml"])
    config = load_config(file)
    assert (config.policy.name, config.mode, config.cluster.insecure, config.run_dir) == (
        "static",
        "observe",
        True,
        "/out",
    )
    spec = found["JobSet"]["spec"]
    assert found["JobSet"]["metadata"]["name"] == "other"
    assert spec["failurePolicy"]["maxRestarts"] == 2
    launcher, agents = (each["template"]["spec"]["template"]["spec"] for each in spec["replicatedJobs"])
    assert launcher["containers"][0]["args"][-2:] == ["--resume", "/out/a.pt"]
    assert agents["nodeSelector"] == {"gpu": "a100", "zone": "a"}
    assert agents["containers"][0]["resources"]["limits"] == {"memory": "1Gi"}


@pytest.mark.parametrize(
    ("words", "kind", "reason"),
    [
        ("-c c.yaml --image i", UsageError, "no command for the workers"),
        ("-c none.yaml --image i -- a", ConfigError, "none.yaml: no such file"),
        ("-c rsync.yaml --image i -- a", UsageError, "sync: rsync: in Kubernetes the code is in the image; set sync"),
        ("-c c.yaml --image i --name No -- a", UsageError, "the job cannot be called 'No' in Kubernetes"),
        ("-c c.yaml --image i --memory 4GB -- a", UsageError, "'4GB' is no size of memory"),
        ("-c c.yaml --image i --run-dir runs -- a", UsageError, "--run-dir: 'runs': a volume is mounted there"),
        ("-c c.yaml --image i --node gpu=a100 -- a", UsageError, "--node: 'gpu=a100'; expected HOST:LABEL=VALUE"),
        ("-c c.yaml --image i --node x:gpu=a100 -- a", UsageError, "--node: 'x' is no host of the job"),
    ],
)
def test_what_cannot_work_is_refused(folder: Path, words: str, kind: type[DynamixError], reason: str) -> None:
    (folder / "rsync.yaml").write_text(CLUSTER + "sync: rsync\n")
    done = k8s(words)
    assert isinstance(done.exception, kind)
    assert re.search(re.escape(reason), str(done.exception))
    assert done.output == ""


def test_the_manifests_of_the_probe_are_those_of_its_namespaces(folder: Path) -> None:
    words = ["probe", "manifest", "--image", "i", "--namespace", "ml", "--privileged"]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.exception is None, done.output
    made = list(yaml.safe_load_all(done.output))
    assert [each["kind"] for each in made] == ["Namespace", "DaemonSet", "PersistentVolume", "PersistentVolumeClaim"]
    assert made[3]["metadata"]["namespace"] == "ml"
    assert "privileged: true" in done.output
