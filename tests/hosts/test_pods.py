"""The manifests of the README's `dynamix k8s`: they are valid, and their containers run as processes, each in a network
namespace. A job runs, and every end leaves nothing.

Names of the headless service are replaced by addresses, and paths in the containers by those of a folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.testbed import Bed, Link, permitted
from tests.hosts.noticed_host import NoticedHost
from tests.hosts.shown_commands import shown_words
from tests.hosts.test_encryption import captured
from tests.hosts.test_ssh import TOLD, TRAINS, gone_within, read_until_all_train
from tests.hosts.three_hosts import Launchers
from tests.job_secret import job_secret
from tests.launching import HOOK, assert_nothing_left, begun, ends, environment, read_until, run_id_in, run_to_end
from tests.manifest_schemas import assert_valid, jobs_of

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(permitted() is not None, reason=f"no test bed: {permitted()}"),
]

NODES = ("node-1", "node-2", "node-3")
OTHER = "other"
CLUSTER = "name: t\ncomm: gloo\nmode: observe\ncluster: {workers: [{}, {}, {}]}\n"
ENDS = (
    "started(); print('here', rank, os.environ['DYNAMIX_HOST'], os.environ['DYNAMIX_TOKEN'], flush=True); finished()\n"
)


class Pods:
    """A job of three workers whose pods are namespaces; nothing runs yet.

    `script`: of the workers; without one, it lies in the folder, with the cluster file.
    """

    def __init__(self, bed: Bed, folder: Path, script: str = "") -> None:
        self.bed, self.folder = bed, folder
        self.secret = folder / "secret"
        self.secret.mkdir()
        self._processes: Launchers = []
        if script:
            (folder / "train.py").write_text(script)
            (folder / "cluster.yaml").write_text(CLUSTER)
        output = subprocess.run(
            [sys.executable, "-m", "dynamix_ps.cli.main", *shown_words("Kubernetes")],
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        manifests = {each["kind"]: each for each in yaml.safe_load_all(output)}
        assert_valid(manifests.values())
        pods = {job["metadata"]["name"]: job["spec"]["template"]["spec"] for job in jobs_of(manifests["JobSet"])}
        self._launcher, self._agent = (pods[name]["containers"][0] for name in ("launcher", "agents-1"))
        (self._waiting,) = pods["launcher"]["initContainers"]
        names = ("t-launcher-0-0.t", "t-agents-1-0-0.t", "t-agents-1-0-1.t")
        self._here = {name: bed.address(node) for name, node in zip(names, NODES, strict=True)}
        self._here |= {"/etc/dynamix": str(self.secret), "/runs": str(folder / "runs")}
        for name, text in manifests["Secret"]["stringData"].items():
            (self.secret / name).write_text(self._placed(text))

    def launch(self) -> subprocess.Popen[str]:
        """The launcher's pod: first what waits for the agents, then the launcher."""
        waited = self._start(NODES[0], self._waiting)
        ends(waited, 0)
        return self._start(NODES[0], self._launcher)

    def agent(self, node: str) -> subprocess.Popen[str]:
        return self._start(node, self._agent)

    def agents(self) -> dict[str, subprocess.Popen[str]]:
        return {node: self.agent(node) for node in NODES[1:]}

    def end_all(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def _placed(self, text: str) -> str:
        for name, place in self._here.items():
            text = text.replace(name, place)
        return text

    def _start(self, node: str, container: dict[str, Any]) -> subprocess.Popen[str]:
        words = [self._placed(word) for word in (*container["command"], *container.get("args", ()))]
        program = [sys.executable, "-m", "dynamix_ps.cli.main"] if words[0] == "dynamix" else [sys.executable]
        environ = environment(**{each["name"]: self._placed(each["value"]) for each in container.get("env", ())})
        process = begun([*self.bed.inside(node), *program, *words[1:]], self.folder, environ)
        self._processes.append(process)
        return process


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with Bed({host: Link() for host in (*NODES, OTHER)}) as up:
        yield up


@pytest.fixture
def started() -> Iterator[list[Pods]]:
    jobs: list[Pods] = []
    yield jobs
    for job in jobs:
        job.end_all()


def test_a_job_runs_and_neither_its_token_nor_that_of_the_pods_is_on_the_wire(
    bed: Bed, tmp_path: Path, started: list[Pods]
) -> None:
    started.append(job := Pods(bed, tmp_path, HOOK + ENDS))
    with captured(bed, NODES[1], tmp_path / "captured") as until_now:
        agents = job.agents()
        output = ends(job.launch(), 0)
        seen = until_now()
    here = dict(line.split("here ")[1].split()[1:] for line in output.splitlines() if "| here " in line)
    assert set(here) == {"pod-0", "pod-1", "pod-2"}, output
    (token,) = set(here.values())
    for secret in (token, (job.secret / "token").read_text(), "train.py"):
        assert secret.encode() not in seen
    for agent in agents.values():
        ends(agent, 0)
    logs = (tmp_path / "runs" / "latest" / "logs").glob("worker-*.log")
    assert {path.stem for path in logs} == {"worker-0", "worker-1", "worker-2"}
    assert_nothing_left(run_id_in(output))


def test_a_stranger_with_the_certificate_of_another_job_is_refused(
    bed: Bed, tmp_path: Path, started: list[Pods]
) -> None:
    started.append(job := Pods(bed, tmp_path, HOOK + ENDS))
    agents = job.agents()
    seen = read_until(agents["node-2"], "waits for its launcher")
    job_secret(tmp_path / "theirs")
    address = bed.address("node-2")
    words = (
        sys.executable,
        "-m",
        "dynamix_ps.launch.targets.kubernetes.tls_command",
        address,
        "7077",
        str(tmp_path / "theirs"),
    )
    done = run_to_end([*bed.inside(OTHER), *words])
    assert (done.returncode, done.stdout) == (3, "")
    assert f"{address} port 7077: what listens there has no certificate of this job" in done.stderr
    seen += read_until(agents["node-2"], f"refused {bed.address(OTHER)}: it has no certificate of this job")
    ends(job.launch(), 0)
    ends(agents["node-2"], 0, seen)


def test_a_killed_launcher_leaves_nothing_and_its_agents_end(bed: Bed, tmp_path: Path, started: list[Pods]) -> None:
    started.append(job := Pods(bed, tmp_path, HOOK + TRAINS))
    agents = job.agents()
    launcher = job.launch()
    run_id = run_id_in(read_until_all_train(launcher))
    launcher.kill()
    gone_within(run_id, 10.0, ())
    for agent in agents.values():
        assert "all that it had started was ended" in ends(agent, 3)


def test_a_pod_that_is_told_to_end_ends_the_run_in_order(bed: Bed, tmp_path: Path, started: list[Pods]) -> None:
    started.append(job := Pods(bed, tmp_path, HOOK + TOLD + TRAINS))
    agents = job.agents()
    launcher = job.launch()
    seen = read_until_all_train(launcher)
    agents["node-3"].send_signal(signal.SIGTERM)
    output = ends(launcher, 130, seen)
    assert "interrupted by SIGTERM on host pod-2" in output
    assert all(f"told to end {rank}" in output for rank in range(3))
    for agent in agents.values():
        ends(agent, 0)
    assert_nothing_left(run_id_in(output))


def test_the_workers_of_a_pod_that_is_told_to_end_leave_an_elastic_job(
    bed: Bed, tmp_path: Path, started: list[Pods]
) -> None:
    noticed = NoticedHost(tmp_path)
    started.append(job := Pods(bed, tmp_path))
    agents = job.agents()
    launcher = job.launch()
    noticed.wait_until_all_train(launcher)
    agents["node-3"].send_signal(signal.SIGTERM)
    ends(agents["node-3"], 0)
    noticed.check("pod-2", ends(launcher, 0))
    ends(agents["node-2"], 0)


def test_a_killed_pod_ends_the_job_and_is_named(bed: Bed, tmp_path: Path, started: list[Pods]) -> None:
    started.append(job := Pods(bed, tmp_path, HOOK + TRAINS))
    agents = job.agents()
    launcher = job.launch()
    seen = read_until_all_train(launcher)
    os.kill(agents["node-3"].pid, signal.SIGKILL)
    output = ends(launcher, 4, seen)
    assert "error: host pod-2 is lost: the connection to " in output
    assert "its pod has ended, was moved, or serves another launcher" in output
    gone_within(run_id_in(output), 10.0, ())


def test_a_cut_link_ends_the_job_on_both_sides_of_it(bed: Bed, tmp_path: Path, started: list[Pods]) -> None:
    started.append(job := Pods(bed, tmp_path, HOOK + TRAINS))
    agents = job.agents()
    launcher = job.launch()
    seen = read_until_all_train(launcher)
    bed.unplug("node-2")
    try:
        gone_within(run_id_in(seen), 10.0, ())
        output = ends(launcher, 4, seen)
        assert "the launcher has not been heard of for 7 s" in ends(agents["node-2"], 3)
    finally:
        bed.plug("node-2")
    assert "error: host pod-1 is lost: nothing has come from it for 7 s" in output
