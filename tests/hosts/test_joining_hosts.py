"""`dynamix join --host`, with a real sshd on each host: workers on a host that the cluster file does not name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.testbed.ssh_hosts import unavailable
from dynamix_ps.one_thread import ONE_THREAD
from tests.hosts.three_hosts import ADDRESSES, Launchers, ThreeHosts
from tests.integration.membership.elastic_story import DOUBLE, Story
from tests.launching import ends, wait_for

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(unavailable() is not None, reason=f"no hosts: {unavailable()}"),
]

STORY = """\
four = 0
def fault(rank, iteration): ...
def stepped(present):
    global four
    four += len(present) == 4
    time.sleep(0.03)
def enough():
    return four >= 10
"""
NAMED = "Host node-3\n  HostName 10.77.0.3\n"


@pytest.mark.parametrize("comm", ["byteps", "gloo"])
def test_workers_on_a_host_that_the_cluster_file_does_not_name(
    hosts: ThreeHosts, tmp_path: Path, started: Launchers, comm: str
) -> None:
    """A host with other code is refused before. In the end the result is that of one process."""
    folder, other = tmp_path / "job", tmp_path / "other"
    folder.mkdir()
    named = {name: (f"{{address: {ADDRESSES[name]}}}", ()) for name in ("node-1", "node-2")}
    keys = f"env: {ONE_THREAD!r}\n"
    more = {"elastic": ", max_workers: 4", "servers": "[{host: node-1}]", "keys": keys, "comm": comm}
    story = Story(folder, None, STORY, DOUBLE, min_workers=1, workers=2, hosts=named, **more)
    story.write()
    shutil.copytree(folder, other)
    (other / "train.py").write_text("print('of last week')\n")
    hosts.configure(NAMED)
    try:
        started.append(job := hosts.launch(folder, "-c", "cluster.yaml"))

        def join(*words: str, exit_code: int = 0) -> str:
            return ends(hosts.dynamix(folder, "join", *words), exit_code, limit_s=90)

        def there(*ranks: int) -> bool:
            sums = story.sums(0)
            return (len(sums) > 5 and sums[-1]["present"] == [*ranks]) or job.poll() is not None

        wait_for(lambda: there(0, 1), "two that train", limit_s=90)
        assert "worker 2: no host has a free slot for it; name one: dynamix join 2 --host" in join("2", exit_code=2)
        told = join("2", "--host", "node-2", exit_code=3)
        assert "worker 2: host node-2 cannot join: it has worker-1 of this job already" in told
        hosts.show_instead("node-3", folder, other)
        told = join("2", "--host", "node-3", exit_code=3)
        assert "worker 2: host node-3 cannot join: train.py differs from what the launcher has; copy it there" in told
        hosts.show_all("node-3")
        told = join("2", "--host", "node-3", "--slots", "2")
        assert told.startswith("worker 2 has entered; 3 workers go on")
        wait_for(lambda: there(0, 1, 2), "a sum of three")
        ends(hosts.dynamix(folder, "leave", "2"), 0, limit_s=60)
        assert join("2").startswith("worker 2 has entered; 3 workers go on")
        assert join("3").startswith("worker 3 has entered; 4 workers go on")
        output = ends(job, 0, limit_s=90)
    finally:
        hosts.show_all("node-3")
        hosts.configure("")
    story.assert_nothing_left()
    story.check([0, 1, 2, 3], rtol=1e-9)
    story.check_epochs(0)
    assert "host node-3 (10.77.0.3) has joined, for worker 2, 3" in output
    summary = story.summary()
    assert [row["host"] for row in summary["per_worker"]] == ["node-1", "node-2", "node-3", "node-3"]
    assert [row["state"] for row in summary["per_worker"]] == ["finished"] * 4
    assert len(summary["arrivals"]) == 3 and len(summary["departures"]) == 1 and summary["losses"] == []


def test_a_job_grows_from_one_host_to_three(hosts: ThreeHosts, tmp_path: Path, started: Launchers) -> None:
    named = {"node-1": (f"{{address: {ADDRESSES['node-1']}}}", ())}
    more = {"elastic": ", max_workers: 3", "servers": "[{host: node-1}]", "keys": f"env: {ONE_THREAD!r}\n"}
    script = STORY.replace("== 4", "== 3") + "def attached():\n    assert os.path.isdir(os.environ['DYNAMIX_TLS'])\n"
    story = Story(tmp_path, None, script, DOUBLE, min_workers=1, workers=1, hosts=named, **more)
    story.write()
    started.append(job := hosts.launch(tmp_path, "-c", "cluster.yaml"))
    wait_for(lambda: len(story.sums(0)) > 5 or job.poll() is not None, "one that trains", limit_s=90)
    for rank, address in (("1", ADDRESSES["node-2"]), ("2", ADDRESSES["node-3"])):
        told = ends(hosts.dynamix(tmp_path, "join", rank, "--host", address), 0, limit_s=90)
        assert told.startswith(f"worker {rank} has entered; ")
    ends(job, 0, limit_s=90)
    story.assert_nothing_left()
    story.check([0, 1, 2], rtol=1e-9)
    story.check_epochs(0)
    assert [row["host"] for row in story.summary()["per_worker"]] == [
        "node-1",
        ADDRESSES["node-2"],
        ADDRESSES["node-3"],
    ]
