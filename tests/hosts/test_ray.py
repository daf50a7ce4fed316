"""`dynamix launch` with a real Ray on four hosts: nodes are hosts unasked, and every ending leaves nothing on any."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.hosts.ray_cluster import NODES, WITH_GPU, RayCluster, ray_cluster, unavailable
from tests.hosts.shown_commands import shown_commands, shown_words
from tests.hosts.test_ssh import (
    REAL,
    SPIES,
    TOLD,
    TRAINS,
    agents_of,
    assert_ctrl_c_ends_in_order,
    gone_within,
    read_until_all_train,
    runs,
    weights_in,
)
from tests.hosts.three_hosts import Launchers, cluster_file
from tests.launching import HOOK, assert_nothing_left, command_line, ends, read_until, run_id_in, summary_in

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(unavailable() is not None, reason=f"no Ray: {unavailable()}"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as up:
        yield up


@pytest.fixture
def ray(cluster: RayCluster) -> RayCluster:
    """The cluster with all its nodes."""
    cluster.start_killed_nodes()
    return cluster


def three_workers(folder: Path, script: str) -> str:
    """A cluster file that names no hosts; each node has room for one worker."""
    return str(cluster_file(folder, script, {}, (64, 64, 64)))


def test_a_launch_in_a_ray_cluster_trains_on_its_nodes(ray: RayCluster, tmp_path: Path, started: Launchers) -> None:
    three_workers(tmp_path, "")
    (tmp_path / "train.py").write_text(REAL.replace("ITERATIONS", "40"))
    assert shown_commands()["Ray"].startswith("RAY_ADDRESS=head:6379 dynamix")  # here the address of the test's head
    started.append(job := ray.dynamix(tmp_path, *shown_words("Ray")))
    output = ends(job, 0, limit_s=120.0)
    found = re.search(rf"hosts from Ray at {ray.address}: (\S+)\n", output)
    assert found, output
    assert sorted(found.group(1).split(",")) == [f"{ray.bed.address(name)}:1" for name in NODES]
    assert (len(weights_in(output)), len(set(weights_in(output)))) == (3, 1), output
    assert (summary_in(tmp_path)["workers"], summary_in(tmp_path)["iterations"]) == (3, 40)
    folder = tmp_path / "runs" / "latest"
    assert {path.stem for path in (folder / "logs").glob("*.log")} >= {f"worker-{rank}" for rank in range(3)}
    assert_nothing_left(run_id_in(output))


SHOWS_GPUS = "print('sees', os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True)\n"


def test_workers_get_nodes_with_gpus_if_there_are_enough(ray: RayCluster, tmp_path: Path, started: Launchers) -> None:
    file = cluster_file(tmp_path, HOOK + SHOWS_GPUS + "started(); finished()\n", {}, (64, 64))
    started.append(job := ray.launch(tmp_path, "-c", str(file)))
    output = ends(job, 0)
    assert all(f"{ray.bed.address(name)}:1" in output for name in WITH_GPU)
    assert output.count("| sees 0\n") == 2, output


def test_else_workers_have_no_gpu_on_the_launchers_node_neither_and_the_token_is_hidden(
    ray: RayCluster, tmp_path: Path, started: Launchers
) -> None:
    file = three_workers(tmp_path, HOOK + SHOWS_GPUS + SPIES)
    started.append(job := ray.launch(tmp_path, "-c", file, on=NODES[0]))
    output = ends(job, 0)
    assert output.count("| sees \n") == 3, output
    assert output.count("with the token: []") == 3, output


def test_doctor_checks_the_nodes_that_a_launch_would_get(ray: RayCluster, tmp_path: Path, started: Launchers) -> None:
    file = three_workers(tmp_path, HOOK + TRAINS)
    started.append(doctor := ray.dynamix(tmp_path, "doctor", "--hosts", "-c", file))
    output = ends(doctor, 0)
    assert all(ray.bed.address(name) in output for name in NODES)
    assert output.endswith("ready\n")


def test_ctrl_c_ends_a_launch_that_waits_for_places(ray: RayCluster, tmp_path: Path, started: Launchers) -> None:
    file = cluster_file(tmp_path, HOOK + TRAINS, {}, (64,) * 4)
    started.append(job := ray.launch(tmp_path, "-c", str(file)))
    seen = read_until(job, "waiting until Ray has places for 4 workers with 1 CPU each")
    drivers = [
        child.pid for child in psutil.Process(job.pid).children() if "ray.driver" in command_line(f"{child.pid}")
    ]
    assert len(drivers) == 1
    job.send_signal(signal.SIGINT)
    assert "run folder" not in ends(job, 130, seen, limit_s=15.0)
    assert not any(map(runs, drivers))


def test_one_ctrl_c_ends_the_workers_of_all_nodes_in_order(ray: RayCluster, tmp_path: Path, started: Launchers) -> None:
    started.append(job := ray.launch(tmp_path, "-c", three_workers(tmp_path, HOOK + TOLD + TRAINS)))
    assert_ctrl_c_ends_in_order(job)


def test_a_killed_launcher_leaves_nothing_on_any_node(ray: RayCluster, tmp_path: Path, started: Launchers) -> None:
    started.append(job := ray.launch(tmp_path, "-c", three_workers(tmp_path, HOOK + TRAINS)))
    run_id = run_id_in(read_until_all_train(job))
    agents = agents_of(run_id)
    job.kill()
    gone_within(run_id, 10.0, agents)


def test_a_node_that_ray_loses_ends_the_job(ray: RayCluster, tmp_path: Path, started: Launchers) -> None:
    started.append(job := ray.launch(tmp_path, "-c", three_workers(tmp_path, HOOK + TRAINS)))
    seen = read_until_all_train(job)
    run_id, agents = run_id_in(seen), agents_of(run_id_in(seen))
    ray.kill_node("node-2")
    output = ends(job, 4, seen)
    assert f"error: host {ray.bed.address('node-2')} is lost: Ray's actor on " in output
    assert "; see `ray list nodes`, and Ray's logs of that node (it ran worker-" in output
    gone_within(run_id, 10.0, agents)
