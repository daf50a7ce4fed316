"""A Ray cluster as hosts, and the way to the agents of its nodes. A stand-in of Ray runs in the driver's process."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import psutil
import pytest

from dynamix_ps.config.schema import Host
from dynamix_ps.errors import EnvironmentNotReady, UsageError
from dynamix_ps.launch.host.agent import LEASE_S
from dynamix_ps.launch.messages.agent_messages import Hello, Inspect, Inspected
from dynamix_ps.launch.targets.ray import stream as ray_stream
from dynamix_ps.launch.targets.ray.allocation import RayJob, advice, ray_job
from tests.launching import ROOT, command_line, environment, wait_for
from tests.unit.launch.targets.ray import fake_ray
from tests.unit.launch.targets.test_command_link import Rig

pytestmark = pytest.mark.timeout(60)

NODES = {"n1": "192.0.2.1", "n2": "192.0.2.2"}
PLACES = ("n1", "n1", "n2")


class Cluster:
    """A stand-in of Ray in a folder, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lost, self._log = folder / "lost", folder / "log"
        fake_ray.install(folder)

    def environ(self, **changes: object) -> dict[str, str]:
        """`changes`: of what the cluster is."""
        cluster = {"nodes": NODES, "places": PLACES, "log": str(self._log), "lost": str(self.lost), **changes}
        paths = f"{self.folder}:{ROOT}"
        return environment(RAY_ADDRESS="auto", PYTHONPATH=paths, FAKE_RAY=json.dumps(cluster))

    def job(self, **changes: object) -> RayJob:
        job = ray_job(self.environ(**changes))
        assert job is not None
        return job

    @property
    def asked(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    return Cluster(tmp_path)


class Reached:
    """The agent of n2, which has spoken."""

    def __init__(self, job: RayJob) -> None:
        job.hosts(3)
        self.rig = Rig(job.agent_command(NODES["n2"]))
        self.rig.until(lambda: self.rig.got)
        hello = self.rig.got[0]
        assert isinstance(hello, Hello)
        self.pid = hello.pid

    def wait_for_its_end(self, limit_s: float = 30.0) -> None:
        wait_for(lambda: not command_line(f"{self.pid}"), "the end of the agent", limit_s)


@pytest.fixture
def reached(cluster: Cluster) -> Iterator[Reached]:
    job = cluster.job()
    agent = Reached(job)
    yield agent
    agent.rig.link.close()


def drivers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "dynamix_ps.launch.targets.ray.driver" in child.cmdline()]


@pytest.mark.parametrize("address", ["", "local", "http://192.0.2.1:8265", "https://ray.example.org"])
def test_without_a_cluster_around_it_there_is_none(address: str) -> None:
    assert ray_job({"RAY_ADDRESS": address, "PATH": "/usr/bin"}) is None
    assert ray_job({}) is None


def test_nodes_are_hosts_and_places_are_slots(cluster: Cluster) -> None:
    job = cluster.job()
    assert job.name == "Ray at auto"
    assert not job.reaches(NODES["n1"])
    assert job.hosts(3, 2) == {"192.0.2.1": Host(slots=2), "192.0.2.2": Host(slots=1)}
    assert [job.reaches(host) for host in (*NODES.values(), "192.0.2.3")] == [True, True, False]
    assert cluster.asked == ['PACK [{"CPU": 2}, {"CPU": 2}, {"CPU": 2}]']


def test_workers_get_the_gpus_of_their_places_if_there_is_one_for_each(cluster: Cluster) -> None:
    hosts = cluster.job(gpus=[5, 7, 0]).hosts(3)
    assert hosts == {"192.0.2.1": Host(slots=2, devices=(5, 7)), "192.0.2.2": Host(slots=1, devices=(0,))}
    assert cluster.asked[0] == 'PACK [{"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 1}]'
    assert {host.devices for host in cluster.job(gpus=[5, 7]).hosts(3).values()} == {None}


def test_an_agent_is_reached_and_answers(reached: Reached) -> None:
    rig = reached.rig
    rig.link.send(Inspect("192.0.2.2", "192.0.2.2", (), str(ROOT), str(ROOT / "configs"), {}))
    rig.until(lambda: any(isinstance(message, Inspected) for message in rig.got))
    assert not rig.link.shares_run_folder


def test_an_agent_ends_when_the_launcher_leaves_it(reached: Reached) -> None:
    reached.rig.link.leave()
    reached.wait_for_its_end(LEASE_S - 1)  # by the end of its input, not by its lease


@pytest.mark.slow
def test_the_driver_leaves_ray_with_the_job(cluster: Cluster) -> None:
    agent = Reached(job := cluster.job())
    agent.rig.link.close()
    assert len(drivers()) == 1
    del job
    gc.collect()
    assert drivers() == []
    assert cluster.asked[-1] == "shutdown"
    agent.wait_for_its_end()


def test_a_node_that_ray_loses_is_lost_with_what_ray_says(cluster: Cluster, reached: Reached) -> None:
    cluster.lost.touch()
    reached.rig.until(lambda: reached.rig.link.lost)
    assert re.fullmatch(
        r"Ray's actor on 192\.0\.2\.2 ended with exit code 3 \(.*The actor is dead because its node has died\. "
        r"Node Id: n2\); see `ray list nodes`, and Ray's logs of that node",
        reached.rig.link.lost,
    )


def test_an_agent_that_is_killed_is_lost(reached: Reached) -> None:
    os.kill(reached.pid, signal.SIGKILL)
    reached.rig.until(lambda: reached.rig.link.lost)
    assert reached.rig.link.lost.startswith("Ray's actor on 192.0.2.2 ended with exit code 137; its agent was killed")


def test_without_its_driver_a_launch_has_lost_its_hosts_and_they_end(reached: Reached) -> None:
    """Signals to the driver are for the launcher, as Ctrl-C is."""
    (driver,) = drivers()
    driver.send_signal(signal.SIGTERM)
    driver.send_signal(signal.SIGINT)
    reached.rig.link.send(Inspect("192.0.2.2", "192.0.2.2", (), str(ROOT), str(ROOT / "configs"), {}))
    reached.rig.until(lambda: any(isinstance(message, Inspected) for message in reached.rig.got))
    driver.kill()
    reached.rig.until(lambda: reached.rig.link.lost)
    assert "the launch's driver of Ray has ended" in reached.rig.link.lost
    reached.wait_for_its_end()


def test_a_cluster_that_cannot_be_reached_is_named(cluster: Cluster) -> None:
    said = "cannot connect to Ray at RAY_ADDRESS=auto: Failed. no node here; launch on a node of the cluster"
    with pytest.raises(EnvironmentNotReady, match=re.escape(said)):
        cluster.job(refuses="Failed.\nno node here").hosts(3)


def test_a_driver_that_ends_without_a_word_is_told(cluster: Cluster) -> None:
    (cluster.folder / "ray" / "__init__.py").write_text("raise ImportError('libray is damaged')\n")
    with pytest.raises(EnvironmentNotReady, match=r"the launch's driver of Ray has ended: .*libray is damaged"):
        cluster.job().hosts(3)


def test_two_nodes_of_one_machine_are_refused(cluster: Cluster) -> None:
    with pytest.raises(EnvironmentNotReady, match=r"two nodes at 192\.0\.2\.1 \(n1 and n2\); start one per machine"):
        cluster.job(nodes={"n1": "192.0.2.1", "n2": "192.0.2.1"}).hosts(3)


def test_a_client_outside_of_the_cluster_is_refused() -> None:
    job = ray_job({"RAY_ADDRESS": "ray://192.0.2.1:10001"})
    assert job is not None
    with pytest.raises(UsageError, match="which leads there from outside; launch on a node of the cluster"):
        job.hosts(3)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    job = ray_job({"RAY_ADDRESS": "auto"})
    assert job is not None
    with pytest.raises(EnvironmentNotReady, match=r"has no ray; run: pip install dynamix-ps\[ray\], or name hosts"):
        job.hosts(3)


@pytest.mark.parametrize(
    ("exit_code", "lines", "spoke", "said"),
    [
        (3, ["ModuleNotFoundError: No module named 'dynamix_ps'"], False, "install this package there"),
        (3, ["ray.exceptions.OutOfMemoryError: Task was killed"], True, "fewer workers, or Ray nodes with more"),
        (3, [], False, "see `ray status`"),
        (0, [], True, ""),
    ],
)
def test_what_to_do_about_the_end_of_an_actor(exit_code: int, lines: list[str], spoke: bool, said: str) -> None:
    assert said in advice("b", exit_code, lines, spoke)
    assert bool(said) == bool(advice("b", exit_code, lines, spoke))


@pytest.fixture
def driver(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The driver's module in this process, with the stand-in."""
    names = ("ray", "ray.exceptions", "ray.util", "ray.util.placement_group", "ray.util.scheduling_strategies")
    for name in names:
        monkeypatch.setitem(sys.modules, name, fake_ray)
    monkeypatch.setenv("FAKE_RAY", cluster.environ(full=True)["FAKE_RAY"])
    module: ModuleType = importlib.import_module("dynamix_ps.launch.targets.ray.driver")
    yield module
    del sys.modules["dynamix_ps.launch.targets.ray.driver"]


@pytest.mark.parametrize("listens", [False, True], ids=["nobody", "no Ray"])
def test_an_address_at_which_no_ray_answers_is_told_soon(
    driver: Any, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    assert driver._ANSWER_S <= 5
    monkeypatch.setattr(driver, "_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        if not listens:
            mute.close()
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(EnvironmentNotReady, match=rf"no Ray answers at RAY_ADDRESS={address} within 0\.2 s"):
            driver._connect()


def test_an_address_at_which_grpc_is_spoken_is_ray_s(driver: Any) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        driver.check_answers({"RAY_ADDRESS": f"127.0.0.1:{port}"})
    finally:
        server.stop(None).wait()


def test_a_launch_waits_for_places_says_so_and_gives_up(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_SAY_S", -1.0)
    monkeypatch.setattr(driver, "_PLACE_S", 0.01)
    told: list[dict[str, Any]] = []
    said = r"no place for 3 workers with 2 CPU each within 0\.01 s \(free: 1 CPU\); see `ray status`"
    with pytest.raises(EnvironmentNotReady, match=said):
        driver.Driver(threading.Event(), told.append).take(3, 2)
    assert told == [{"waiting": "waiting until Ray has places for 3 workers with 2 CPU each"}]


def test_nobody_waits_for_a_launcher_that_is_gone(driver: Any) -> None:
    gone = threading.Event()
    gone.set()
    with pytest.raises(EnvironmentNotReady, match="the launcher has ended"):
        driver.Driver(gone, print).take(3, 2)


def test_streams_of_another_user_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
        assert ray_stream.received_streams(ours) is None
        assert theirs.recv(1) == b""
