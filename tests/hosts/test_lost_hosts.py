"""A host that is gone all at once and says nothing any more: its job ends on all hosts, whichever way leads there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.testbed import Bed
from benchmarks.testbed.ssh_hosts import unavailable as no_ssh
from dynamix_ps.launch.cleanup.release import processes_of
from tests.hosts.slurm_cluster import SlurmCluster
from tests.hosts.slurm_cluster import unavailable as no_slurm
from tests.hosts.test_ssh import ENDS, TRAINS, agents_of, gone_within, read_until_all_train, runs
from tests.hosts.three_hosts import Launchers, ThreeHosts, cluster_file, three_workers
from tests.launching import HOOK, assert_nothing_left, ends, kill_all, reapers_of, run_id_in, wait_for

pytestmark = pytest.mark.timeout(180)
LOST = "node-2"


@dataclass
class Way:
    """`launch`: a job of three workers in a folder. `bring_back`: what lets jobs run on a host again after a crash."""

    bed: Bed
    launch: Callable[[Path, str], subprocess.Popen[str]]
    bring_back: Callable[[str], None]


def by_ssh(hosts: ThreeHosts) -> Way:
    def launch(folder: Path, script: str) -> subprocess.Popen[str]:
        return hosts.launch(folder, "-c", str(cluster_file(folder, script)))

    return Way(hosts.bed, launch, hosts.start_sshd)


def by_slurm(slurm: SlurmCluster) -> Way:
    def launch(folder: Path, script: str) -> subprocess.Popen[str]:
        command = (sys.executable, "-m", "dynamix_ps.cli.main", "launch", "-c", str(three_workers(folder, script)))
        return slurm.popen("salloc", "-N3", *command, cwd=folder)

    def bring_back(name: str) -> None:
        slurm.start_node(name)
        slurm.cancel_all()
        slurm.wait_until_idle()

    return Way(slurm.bed, launch, bring_back)


@pytest.fixture(
    params=[
        pytest.param("ssh", marks=pytest.mark.skipif(no_ssh() is not None, reason=f"no hosts: {no_ssh()}")),
        pytest.param("slurm", marks=pytest.mark.skipif(no_slurm() is not None, reason=f"no Slurm: {no_slurm()}")),
    ]
)
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    if request.param == "ssh":
        yield by_ssh(request.getfixturevalue("hosts"))
        return
    slurm = request.getfixturevalue("slurm")
    yield by_slurm(slurm)
    slurm.cancel_all()


def assert_lost(output: str) -> None:
    assert f"error: host {LOST} is lost: nothing has come from it for 7 s" in output
    assert "(it ran worker-1)" in output


def test_a_cut_link_ends_the_job_on_both_sides_of_it(way: Way, tmp_path: Path, started: Launchers) -> None:
    started.append(job := way.launch(tmp_path, HOOK + TRAINS))
    seen = read_until_all_train(job)
    agents = agents_of(run_id_in(seen))
    way.bed.unplug(LOST)
    try:
        gone_within(run_id_in(seen), 10.0, agents)
        output = ends(job, 4, seen)
    finally:
        way.bed.plug(LOST)
    assert_lost(output)


def test_a_host_that_reboots_ends_the_job_and_is_ready_for_the_next_one(
    way: Way, tmp_path: Path, started: Launchers
) -> None:
    """What the run has left in its memory and folders there is removed when the next run begins."""
    started.append(job := way.launch(tmp_path, HOOK + TRAINS))
    seen = read_until_all_train(job)
    run_id = run_id_in(seen)
    agents = agents_of(run_id)

    def left() -> list[int]:
        return [*processes_of(run_id), *reapers_of(run_id), *filter(runs, agents)]

    way.bed.crash(LOST)
    try:
        wait_for(lambda: not left(), "the end of all processes", 10.0)
        output = ends(job, 4, seen)
    finally:
        kill_all(run_id)
        way.bed.plug(LOST)
    assert_lost(output)
    way.bring_back(LOST)
    started.append(after := way.launch(tmp_path, HOOK + ENDS))
    assert f"here 1 {LOST}" in ends(after, 0)
    assert_nothing_left(run_id)
