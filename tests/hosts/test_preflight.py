"""What is found out about several hosts before anything starts on them, with a real sshd on each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.testbed.commands import run
from benchmarks.testbed.ssh_hosts import unavailable
from tests.hosts.three_hosts import ADDRESSES, HOSTS, LOGIN, ThreeHosts, cluster_file
from tests.launching import HOOK, assert_nothing_left, ends, run_id_in

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.skipif(unavailable() is not None, reason=f"no hosts: {unavailable()}"),
]

SAYS = HOOK + "from lib import WORD\nstarted(); print('found', WORD, flush=True); finished()\n"
ALIKE = "hosts: 3, which have what the job needs and reach each other"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with a script, a module that it needs and a cluster file."""
    folder = tmp_path / "job"
    folder.mkdir()
    cluster_file(folder, SAYS)
    (folder / "lib.py").write_text("WORD = 'new'\n")
    return folder


def output_of(hosts: ThreeHosts, cwd: Path, *arguments: str, exit_code: int, on: str = HOSTS[0]) -> str:
    return ends(hosts.dynamix(cwd, *arguments, on=on), exit_code)


def test_doctor_tells_of_three_hosts_and_all_ways_between_them(hosts: ThreeHosts, job: Path) -> None:
    words = ("doctor", "--hosts", "-c", "cluster.yaml")
    output = output_of(hosts, job, *words, exit_code=0, on=LOGIN)
    assert output.splitlines()[-1] == "ready"
    for name, address in ADDRESSES.items():
        (line,) = [line for line in output.splitlines() if line.startswith(f"{name}  {address}")]
        assert "(2 files)" in line
    told = json.loads(output_of(hosts, job, *words, "--json", "-H", "node-1:2,node-3", exit_code=0))
    assert told["ok"]
    assert list(told["hosts"]) == ["node-1", "node-3"]
    assert {(way["source"], way["target"]) for way in told["links"]} == {("node-1", "node-3"), ("node-3", "node-1")}
    assert all(way["bytes_per_s"] > 0 and 0 < way["round_trip_s"] < 60 for way in told["links"])


def test_a_host_that_is_off_is_in_the_table_and_the_ways_between_the_others_too(hosts: ThreeHosts, job: Path) -> None:
    with hosts.switched_off("node-3", seen_from=LOGIN):
        output = output_of(hosts, job, "doctor", "--hosts", "-c", "cluster.yaml", exit_code=3, on=LOGIN)
    lines = output.splitlines()
    assert [line.split()[:3] for line in lines if line.startswith("node-3")][:1] == [["node-3", "not", "known"]], output
    (way,) = [line for line in lines if line.startswith("node-1") and " ms" in line]
    assert "MB/s" in way
    (reason,) = [line for line in lines if "host node-3: ssh to " in line]
    assert "timed out" in reason
    assert any("if it is slow, set ConnectTimeout for node-3" in line for line in lines), output
    assert lines[-1] == "not ready: host node-3"


def test_a_host_with_other_code_is_refused_by_name(hosts: ThreeHosts, job: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(job, tmp_path / "other"))
    (other / "lib.py").write_text("WORD = 'old'\n")
    hosts.show_instead("node-2", job, other)
    try:
        output = output_of(hosts, job, "launch", "-c", "cluster.yaml", exit_code=3)
    finally:
        hosts.show_all("node-2")
    reason = "host node-2: lib.py differs from what the launcher has; copy it there, or set sync: rsync"
    assert [line for line in output.splitlines() if line.startswith("error:")] == [f"error: {reason}"]
    assert all(any(line.startswith(f"{name}  10.77.0.") for line in output.splitlines()) for name in HOSTS), output
    assert "found" not in output
    assert_nothing_left(run_id_in(output))


@pytest.mark.skipif(shutil.which("rsync") is None, reason="no rsync")
def test_rsync_takes_the_code_to_a_host_that_has_none(hosts: ThreeHosts, job: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    file = json.loads((job / "cluster.yaml").read_text())
    (job / "cluster.yaml").write_text(json.dumps({**file, "sync": "rsync"}))
    hosts.show_instead("node-2", job, empty)
    try:
        output = output_of(hosts, job, "launch", "-c", "cluster.yaml", exit_code=0)
    finally:
        hosts.show_all("node-2")
    assert ALIKE in output
    assert output.count("| found new") == 3
    assert {path.name for path in empty.iterdir()} - {"__pycache__"} == {"cluster.yaml", "lib.py", "worker.py"}


def test_a_way_between_two_hosts_that_is_closed_is_named(hosts: ThreeHosts, job: Path) -> None:
    route = ("ip", "-n", hosts.bed.namespace("node-2"), "route")
    run(*route, "add", "unreachable", ADDRESSES["node-3"])
    try:
        output = output_of(hosts, job, "launch", "-c", "cluster.yaml", exit_code=3)
    finally:
        run(*route, "del", "unreachable", ADDRESSES["node-3"])
    errors = [line for line in output.splitlines() if line.startswith("error:")]
    assert len(errors) == 2, output
    assert errors[0].startswith("error: host node-2: does not reach node-3 at 10.77.0.3 port ")
    assert errors[0].endswith("(No route to host); open all ports between the hosts")
    assert errors[1].startswith("error: host node-3: does not reach node-2 at 10.77.0.2 port ")
    assert "found" not in output
    assert_nothing_left(run_id_in(output))
